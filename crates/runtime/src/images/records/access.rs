//! Which pods may use an image that the node pulled.

use serde::{Deserialize, Serialize};

use crate::images::credentials::{AccountLogin, PodLogins, SecretLogin, Source};

/// The maximum number of credentials of an image that are recorded when they are only seen.
const MAX_LOGINS: usize = 100;

/// Which pods may use an image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(in crate::images) struct Access {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kubernetes_secrets: Vec<SecretLogin>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kubernetes_service_accounts: Vec<AccountLogin>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) node_pods_accessible: bool,
}

impl Access {
    /// Access for all pods, or for those with a credential.
    pub(in crate::images) fn of(source: Source) -> Self {
        let mut access = Self::default();
        match source {
            Source::Node => access.node_pods_accessible = true,
            Source::Secret(secret) => access.kubernetes_secrets.push(secret),
            Source::Account(account) => access.kubernetes_service_accounts.push(account),
        }
        access
    }

    /// Whether the credentials of a pod can matter.
    pub(super) fn depends_on_logins(&self) -> bool {
        let some =
            !self.kubernetes_secrets.is_empty() || !self.kubernetes_service_accounts.is_empty();
        some && !self.node_pods_accessible
    }

    /// Whether a pod with one of these credentials may use the image, and if so the credential that
    /// is not recorded yet in that form.
    pub(super) fn allows<'a>(&self, logins: &'a PodLogins) -> Option<Option<&'a SecretLogin>> {
        if self.node_pods_accessible {
            return Some(None);
        }
        let few = self.kubernetes_secrets.len() < MAX_LOGINS;
        for login in &logins.secrets {
            for known in &self.kubernetes_secrets {
                let same_hash = !known.hash.is_empty() && known.hash == login.hash;
                let same_secret = (&known.uid, &known.namespace, &known.name)
                    == (&login.uid, &login.namespace, &login.name);
                match (same_hash, same_secret) {
                    (true, same) => return Some(Some(login).filter(|_| !same && few)),
                    // The secret has changed since; it is recorded again.
                    (false, true) if few => return Some(Some(login)),
                    (false, _) => {}
                }
            }
        }
        let account = logins.account.as_ref();
        account.filter(|own| self.kubernetes_service_accounts.contains(own)).map(|_| None)
    }

    /// Add other access. Returns whether anything has changed.
    pub(super) fn merge(&mut self, new: Access) -> bool {
        if self.node_pods_accessible {
            return false;
        }
        if new.node_pods_accessible {
            *self = new;
            return true;
        }
        let mut changed = false;
        for login in new.kubernetes_secrets {
            let place = self.kubernetes_secrets.iter_mut().find(|known| {
                (&known.uid, &known.namespace, &known.name)
                    == (&login.uid, &login.namespace, &login.name)
            });
            match place {
                Some(known) if *known == login => {}
                Some(known) => (*known, changed) = (login, true),
                None => {
                    self.kubernetes_secrets.push(login);
                    changed = true;
                }
            }
        }
        let order =
            |login: &SecretLogin| (login.namespace.clone(), login.name.clone(), login.uid.clone());
        self.kubernetes_secrets.sort_by_key(order);
        for account in new.kubernetes_service_accounts {
            if !self.kubernetes_service_accounts.contains(&account) {
                self.kubernetes_service_accounts.push(account);
                changed = true;
            }
        }
        let order = |own: &AccountLogin| (own.namespace.clone(), own.name.clone(), own.uid.clone());
        self.kubernetes_service_accounts.sort_by_key(order);
        changed
    }
}
