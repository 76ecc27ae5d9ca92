//! Tokens of `--token-auth-file`: lines of `token,user,uid,"group,group"`. Read once, at start.

use std::path::Path;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::pki::{Error, Result};
use crate::user::User;

/// The fewest columns of a line: token, user, UID.
const COLUMNS: usize = 3;

/// The users of the file, by token.
#[derive(Default)]
pub(super) struct TokenFile {
    /// By digest, so that the time of a search says nothing about tokens.
    users: Vec<([u8; 32], User)>,
}

impl TokenFile {
    pub(super) fn load(path: &Path) -> Result<TokenFile> {
        let text = std::fs::read(path).map_err(|source| Error::Io {
            action: "read",
            path: path.to_owned(),
            source,
        })?;
        TokenFile::parse(&text).map_err(|reason| Error::Invalid { path: path.to_owned(), reason })
    }

    fn parse(text: &[u8]) -> std::result::Result<TokenFile, String> {
        let mut file = TokenFile::default();
        let mut lines =
            csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(text);
        for (index, line) in lines.records().enumerate() {
            let number = index + 1;
            // What is wrong is said without the line: it holds a secret.
            let line = line.map_err(|_| format!("record {number} is not valid CSV"))?;
            let mut columns = line.iter();
            let (Some(token), Some(name), Some(uid)) =
                (columns.next(), columns.next(), columns.next())
            else {
                let found = line.len();
                return Err(format!(
                    "record {number} has {found} columns and needs {COLUMNS}: token, user name, user UID"
                ));
            };
            if token.is_empty() {
                tracing::warn!(record = number, "skipping an empty token in the token file");
                continue;
            }
            let groups = columns.next().unwrap_or_default().split(',');
            let groups = groups.filter(|group| !group.is_empty()).map(str::to_owned).collect();
            let user = User { uid: uid.to_owned(), ..User::authenticated(name.to_owned(), groups) };
            let digest = digest(token);
            if file.users.iter().any(|(known, _)| *known == digest) {
                tracing::warn!(
                    record = number,
                    "duplicate token in the token file; the last one is used"
                );
                file.users.retain(|(known, _)| *known != digest);
            }
            file.users.push((digest, user));
        }
        Ok(file)
    }

    /// The user. Compares with every one, each in constant time.
    pub(super) fn find(&self, token: &str) -> Option<&User> {
        let digest = digest(token);
        self.users.iter().fold(None, |found, (known, user)| {
            if bool::from(known.ct_eq(&digest)) { Some(user) } else { found }
        })
    }
}

fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token).into()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;

    #[test]
    fn token_file_users() {
        let text =
            "t1,jane,7,\"dev,ops\"\nt2,joe,8\n,nobody,9\n\"t,3\",\"a \"\"b\"\"\",\nt2,late,10,x\n";
        let file = TokenFile::parse(text.as_bytes()).unwrap();
        for (token, name, uid, groups) in [
            ("t1", "jane", "7", "dev ops system:authenticated"),
            ("t,3", "a \"b\"", "", "system:authenticated"),
            ("t2", "late", "10", "x system:authenticated"),
        ] {
            let user = file.find(token).unwrap();
            assert_eq!((user.name.as_str(), user.uid.as_str()), (name, uid), "{token}");
            assert_eq!(user.groups.join(" "), groups, "{token}");
        }
        for token in ["", "t", "t11", "T1", "jane"] {
            assert!(file.find(token).is_none(), "{token}");
        }
    }

    #[test]
    fn token_file_errors_do_not_contain_the_token() {
        for text in
            ["t1,jane,7\nsecret,x\n", "t1,jane,7\nsecret\n", "t1,jane,7\nsecret,\u{fffd},\n"]
        {
            // The last one made bad: no text at all.
            let bytes: Vec<u8> = text.bytes().map(|b| if b == 0xef { 0xff } else { b }).collect();
            let error = TokenFile::parse(&bytes).err().unwrap();
            assert!(error.contains("record 2") && !error.contains("secret"), "{error}");
        }
    }
}
