//! The commands that README.md and the pages of docs/ tell people to type, for the tests that run or check them.
//!
//! A fenced block whose language is `sh` or `console` has one command a line, with `#` comments. A command may be a
//! synopsis: `[…]` around words that may be left out, words in capitals for values, and `…` at its end for more flags.
//! In prose, commands are in backticks.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]

use std::io;
use std::path::{Path, PathBuf};

/// The languages of blocks that have commands.
const SHELLS: [&str; 2] = ["sh", "console"];

/// A line of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The page and the number of the line, as `docs/host.md:10`.
    pub place: String,
    /// Its text.
    pub text: String,
}

/// What the pages tell people to type.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Guide {
    /// Commands of blocks, in their order.
    pub commands: Vec<Line>,
    /// What is in backticks in prose.
    pub spans: Vec<Line>,
    /// The starts of blocks without a language.
    pub unnamed: Vec<Line>,
}

impl Guide {
    /// The pages of this repository.
    ///
    /// # Errors
    /// A page cannot be read.
    pub fn read() -> io::Result<Self> {
        let root = sources();
        let mut pages = vec!["README.md".to_owned(), "CONTRIBUTING.md".to_owned()];
        let mut names: Vec<String> = std::fs::read_dir(root.join("docs"))?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| name.ends_with(".md"))
            .map(|name| format!("docs/{name}"))
            .collect();
        names.sort();
        pages.append(&mut names);
        let mut guide = Self::default();
        for page in pages {
            guide.add(&page, &std::fs::read_to_string(root.join(&page))?);
        }
        Ok(guide)
    }

    fn add(&mut self, page: &str, text: &str) {
        let mut language: Option<&str> = None;
        for (index, line) in text.lines().enumerate() {
            let found = |text: &str| Line {
                place: format!("{page}:{}", index.saturating_add(1)),
                text: text.trim().to_owned(),
            };
            match (line.trim().strip_prefix("```"), language) {
                (Some(_), Some(_)) => language = None,
                (Some(""), None) => {
                    self.unnamed.push(found(line));
                    language = Some("");
                }
                (Some(named), None) => language = Some(named),
                (None, Some(named)) if SHELLS.contains(&named) => {
                    if !words(line).is_empty() {
                        self.commands.push(found(line));
                    }
                }
                (None, Some(_)) => {}
                (None, None) => {
                    self.spans.extend(line.split('`').skip(1).step_by(2).map(found));
                }
            }
        }
    }
}

/// The folder of the repository.
pub fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The words of a command as a shell has them, without its comment.
pub fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote: Option<char> = None;
    for char in line.chars() {
        match (quote, char) {
            (Some(open), _) if open == char => quote = None,
            (None, '\'' | '"') => {
                quote = Some(char);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, _) if char.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(char),
        }
    }
    words.extend(word);
    words
}

/// The commands that a synopsis stands for: without what may be left out, and with all of it.
pub fn forms(words: &[String]) -> Vec<Vec<String>> {
    let words = words.strip_suffix(&["…".to_owned()]).unwrap_or(words);
    let (mut shortest, mut longest) = (Vec::new(), Vec::new());
    let mut is_optional = false;
    for word in words {
        is_optional |= word.starts_with('[');
        let plain = word.trim_start_matches('[').trim_end_matches(']').to_owned();
        if !is_optional {
            shortest.push(plain.clone());
        }
        longest.push(plain);
        is_optional &= !word.ends_with(']');
    }
    if shortest == longest { vec![longest] } else { vec![shortest, longest] }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn guide_words_are_those_of_a_shell() {
        for (line, expected) in [
            ("make run  # a cluster", vec!["make", "run"]),
            ("# nothing", vec![]),
            ("", vec![]),
            ("a --b='c d'e \"f#g\" h#i ''", vec!["a", "--b=c de", "f#g", "h#i", ""]),
            ("never 'closed # x", vec!["never", "closed # x"]),
        ] {
            assert_eq!(words(line), expected, "{line}");
        }
    }

    #[test]
    fn guide_synopsis_stands_for_its_shortest_and_longest_forms() {
        for (synopsis, expected) in [
            ("a b", vec!["a b"]),
            ("a b …", vec!["a b"]),
            ("a … b", vec!["a … b"]),
            ("a [FILE] [--dir DIR] b", vec!["a b", "a FILE --dir DIR b"]),
        ] {
            let expected: Vec<_> = expected.into_iter().map(split).collect();
            assert_eq!(forms(&split(synopsis)), expected, "{synopsis}");
        }
    }

    #[test]
    fn guide_has_commands_of_blocks_and_spans_of_prose() {
        let text = "Say `make run`, or `x`.\n```sh\nmake run # now\n# only this\n```\n```yaml\na: `b`\n```\n```\nodd\n```\n";
        let mut guide = Guide::default();
        guide.add("p.md", text);
        let show = |lines: &[Line]| -> Vec<String> {
            lines.iter().map(|line| format!("{} {}", line.place, line.text)).collect()
        };
        assert_eq!(show(&guide.commands), ["p.md:3 make run # now"]);
        assert_eq!(show(&guide.spans), ["p.md:1 make run", "p.md:1 x"]);
        assert_eq!(show(&guide.unnamed), ["p.md:9 ```"]);
        let guide = Guide::read().unwrap();
        assert!(guide.commands.iter().any(|line| line.place.starts_with("README.md:")));
    }
}
