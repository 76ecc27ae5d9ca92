//! A model of the kernel: accepts and rejects what `iptables-restore --noflush` would.

use std::collections::BTreeMap;
use std::fmt::Write;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Kernel {
    tables: BTreeMap<String, BTreeMap<String, Vec<String>>>,
}

const BUILT_IN: [(&str, &[&str]); 2] = [
    ("filter", &["INPUT", "FORWARD", "OUTPUT"]),
    ("nat", &["PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"]),
];

impl Default for Kernel {
    fn default() -> Self {
        let chains = |names: &[&str]| names.iter().map(|n| ((*n).to_owned(), vec![])).collect();
        Self { tables: BUILT_IN.map(|(table, names)| (table.to_owned(), chains(names))).into() }
    }
}

impl Kernel {
    /// Runs one restore: each table is taken whole or not at all.
    pub(super) fn restore(&mut self, text: &str) -> Result<(), String> {
        assert!(text.ends_with("COMMIT\n"), "no end: {text}");
        let mut current: Option<(String, BTreeMap<String, Vec<String>>)> = None;
        for line in text.lines() {
            if let Some(table) = line.strip_prefix('*') {
                current = Some((table.to_owned(), self.tables[table].clone()));
                continue;
            }
            let (table, chains) = current.as_mut().ok_or_else(|| format!("{line}: no table"))?;
            if line == "COMMIT" {
                check(chains)?;
                self.tables.insert(table.clone(), chains.clone());
                current = None;
                continue;
            }
            edit(chains, line).map_err(|error| format!("{table}: {line}: {error}"))?;
        }
        Ok(())
    }

    /// What `iptables-save` prints.
    pub(super) fn save(&self) -> String {
        let mut text = String::from("# Generated\n");
        for (table, chains) in &self.tables {
            writeln!(text, "*{table}").unwrap();
            for chain in chains.keys() {
                let policy = if chain.starts_with("KUBE") { "-" } else { "ACCEPT" };
                writeln!(text, ":{chain} {policy} [0:0]").unwrap();
            }
            for (chain, rules) in chains {
                rules.iter().for_each(|rule| writeln!(text, "-A {chain} {rule}").unwrap());
            }
            text.push_str("COMMIT\n");
        }
        text
    }

    /// The same with the rules of shared chains sorted, but for those that stay last.
    pub(super) fn sorted(&self) -> String {
        let mut kernel = self.clone();
        for chains in kernel.tables.values_mut() {
            let shared = [
                "KUBE-SERVICES",
                "KUBE-NODEPORTS",
                "KUBE-EXTERNAL-SERVICES",
                "KUBE-PROXY-FIREWALL",
            ];
            for rules in shared
                .iter()
                .filter_map(|c| chains.remove(*c).map(|rules| (*c, rules)))
                .collect::<Vec<_>>()
            {
                let (chain, mut rules) = rules;
                rules.sort_by_key(|rule| {
                    (rule.contains("NOTE: this must be the last rule"), rule.clone())
                });
                chains.insert(chain.to_owned(), rules);
            }
        }
        kernel.save()
    }

    pub(super) fn chain(&self, table: &str, chain: &str) -> &[String] {
        &self.tables[table][chain]
    }

    pub(super) fn chains(&self, table: &str) -> impl Iterator<Item = (&String, &Vec<String>)> {
        self.tables[table].iter()
    }

    /// How many rules a table has.
    pub(super) fn count(&self, table: &str) -> usize {
        self.tables[table].values().map(Vec::len).sum()
    }
}

fn edit(chains: &mut BTreeMap<String, Vec<String>>, line: &str) -> Result<(), String> {
    if let Some(chain) = line.strip_prefix(':') {
        let (chain, rest) = chain.split_once(' ').ok_or("no policy")?;
        assert_eq!(rest, "- [0:0]");
        assert!(chain.len() <= 28, "{chain}");
        chains.insert(chain.to_owned(), vec![]);
        return Ok(());
    }
    if let Some(chain) = line.strip_prefix("-X ") {
        let rules = chains.remove(chain).ok_or("no such chain")?;
        return if rules.is_empty() { Ok(()) } else { Err("not empty".into()) };
    }
    let (command, rest) = line.split_once(' ').ok_or("no command")?;
    let (chain, rule) = rest.split_once(' ').ok_or("no rule")?;
    let rules = chains.get_mut(chain).ok_or("no such chain")?;
    let comment = rule.split('"').nth(1).unwrap_or_default();
    assert!(comment.len() < 256, "comment too long: {comment}");
    match command {
        "-A" => rules.push(rule.to_owned()),
        "-I" => rules.insert(0, rule.to_owned()),
        "-D" => {
            let at = rules.iter().position(|r| r == rule).ok_or("no such rule")?;
            rules.remove(at);
        }
        other => return Err(format!("command {other}")),
    }
    Ok(())
}

/// Every chain that a rule leads to must be there.
fn check(chains: &BTreeMap<String, Vec<String>>) -> Result<(), String> {
    for rule in chains.values().flatten() {
        if let Some((_, target)) = rule.split_once("-j KUBE-") {
            let target = format!("KUBE-{target}");
            if !chains.contains_key(&target) {
                return Err(format!("{rule}: no chain {target}"));
            }
        }
    }
    Ok(())
}
