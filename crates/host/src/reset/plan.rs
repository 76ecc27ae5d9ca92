//! PURE: what of the facts goes, in order, and how that is shown.

use std::fmt::Write as _;
use std::path::PathBuf;

use super::facts::{Facts, Pod};
use crate::network::BRIDGE;
use crate::tokens::printable;

/// How chains of a kubelet, of kube-proxy and of this project begin.
const CHAINS: [&str; 2] = ["KUBE-", "LONGSHORE-"];
/// The table of kube-proxy in nftables.
const TABLE: &str = "kube-proxy";
/// As many of a kind are shown by name.
const SHOWN: usize = 8;

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Services that are stopped.
    Services(Vec<String>),
    /// Pods with their containers.
    Pods(Vec<Pod>),
    /// Mount points, those mounted last first.
    Mounts(Vec<PathBuf>),
    /// Chains of iptables.
    Rules {
        /// Who reads the input.
        program: &'static str,
        /// The chains, with their tables.
        chains: Vec<String>,
        /// What removes them.
        input: String,
    },
    /// Tables of nftables, as family and name.
    Tables(Vec<String>),
    /// Routes to pods of other nodes.
    Routes(Vec<String>),
    /// The bridge of pods.
    Link(&'static str),
    /// Trees of cgroups.
    Cgroups(Vec<PathBuf>),
    /// Files and directories.
    Files(Vec<PathBuf>),
    /// The directory that says which cluster this was, with the cluster's objects.
    State(PathBuf),
}

/// All steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) steps: Vec<Step>,
    /// What is not known, a line each.
    notes: Vec<String>,
}

/// What removes the chains of a text of iptables-save that are ours: their names and the input of
/// iptables-restore.
pub(super) fn removal(saved: &str) -> Option<(Vec<String>, String)> {
    let is_ours = |chain: &str| CHAINS.iter().any(|start| chain.starts_with(start));
    let (mut names, mut input) = (Vec::new(), String::new());
    for part in saved.split("\n*") {
        let part = part.trim_start_matches('*');
        let Some((table, lines)) = part.split_once('\n') else { continue };
        let table = table.trim();
        // Comments before the first table.
        if table.is_empty() || table.contains(' ') || table.starts_with('#') {
            continue;
        }
        let chains: Vec<&str> = lines
            .lines()
            .filter_map(|line| line.strip_prefix(':')?.split_whitespace().next())
            .filter(|chain| is_ours(chain))
            .collect();
        if chains.is_empty() {
            continue;
        }
        let _ = writeln!(input, "*{table}");
        for chain in &chains {
            // Makes it if it has gone, and empties it.
            let _ = writeln!(input, ":{chain} - [0:0]");
        }
        for rule in lines.lines().filter_map(|line| line.strip_prefix("-A ")) {
            let from = rule.split_whitespace().next().unwrap_or_default();
            if !is_ours(from) && target(rule).is_some_and(is_ours) {
                let _ = writeln!(input, "-D {rule}");
            }
        }
        for chain in &chains {
            let _ = writeln!(input, "-X {chain}");
        }
        input.push_str("COMMIT\n");
        names.extend(chains.iter().map(|chain| format!("{table}/{chain}")));
    }
    (!names.is_empty()).then_some((names, input))
}

/// The chain that a rule leads to; a comment may hold anything, also `-j`.
fn target(rule: &str) -> Option<&str> {
    let mut is_quoted = false;
    let mut words = rule.split(' ');
    while let Some(word) = words.next() {
        // A quote within a comment is escaped.
        let quotes = word.matches('"').count().saturating_sub(word.matches("\\\"").count());
        if !is_quoted && quotes == 0 && matches!(word, "-j" | "-g" | "--jump" | "--goto") {
            return words.next();
        }
        if quotes % 2 == 1 {
            is_quoted = !is_quoted;
        }
    }
    None
}

/// Tables of kube-proxy in the list of nft.
fn tables(list: &str) -> Vec<String> {
    let table = |line: &str| {
        let mut words = line.split_whitespace();
        let (kind, family, name) = (words.next()?, words.next()?, words.next()?);
        let is_known = matches!(family, "ip" | "ip6" | "inet");
        (kind == "table" && name == TABLE && is_known).then(|| format!("{family} {name}"))
    };
    list.lines().filter_map(table).collect()
}

pub(crate) fn plan(facts: &Facts) -> Plan {
    let (mut steps, mut notes) = (Vec::new(), Vec::new());
    if !facts.services.is_empty() {
        steps.push(Step::Services(facts.services.clone()));
    }
    if !facts.pods.is_empty() {
        steps.push(Step::Pods(facts.pods.clone()));
    }
    if let Some(why) = &facts.pods_unknown {
        notes.push(format!(
            "pods are not known, as the container runtime at {} does not answer: {why}",
            facts.runtime
        ));
    }
    if !facts.mounts.is_empty() {
        steps.push(Step::Mounts(facts.mounts.iter().rev().cloned().collect()));
    }
    for (program, saved) in &facts.rules {
        if let Some((chains, input)) = removal(saved) {
            steps.push(Step::Rules { program, chains, input });
        }
    }
    let tables = tables(&facts.tables);
    if !tables.is_empty() {
        steps.push(Step::Tables(tables));
    }
    let routes = facts.routes.lines().filter_map(|line| line.split_whitespace().next());
    let routes: Vec<String> = routes.map(str::to_owned).collect();
    if !routes.is_empty() {
        steps.push(Step::Routes(routes));
    }
    if facts.has_bridge {
        steps.push(Step::Link(BRIDGE));
    }
    if !facts.cgroups.is_empty() {
        steps.push(Step::Cgroups(facts.cgroups.clone()));
    }
    if !facts.files.is_empty() {
        steps.push(Step::Files(facts.files.clone()));
    }
    steps.extend(facts.state.clone().map(Step::State));
    Plan { steps, notes }
}

impl Plan {
    /// A line for each step, and names below it.
    pub(crate) fn text(&self) -> String {
        let mut text = String::from("To be removed:\n");
        for step in &self.steps {
            text.push_str(&step.text());
        }
        for note in &self.notes {
            let _ = writeln!(text, "Note: {}", printable(note));
        }
        text
    }
}

fn paths(all: &[PathBuf]) -> Vec<String> {
    all.iter().map(|path| path.display().to_string()).collect()
}

impl Step {
    fn text(&self) -> String {
        match self {
            Self::Services(all) => listing("services, which are stopped", all),
            Self::Pods(all) => {
                let names: Vec<String> = all.iter().map(|pod| pod.name.clone()).collect();
                listing("pods with their containers", &names)
            }
            Self::Mounts(all) => listing("mounts", &paths(all)),
            Self::Rules { program, chains, .. } => {
                let family = if program.starts_with("ip6") { "ip6tables" } else { "iptables" };
                listing(&format!("chains of {family}"), chains)
            }
            Self::Tables(all) => listing("tables of nftables", all),
            Self::Routes(all) => listing("routes", all),
            Self::Link(link) => listing("network links", &[(*link).to_owned()]),
            Self::Cgroups(all) => listing("cgroups", &paths(all)),
            Self::Files(all) => listing("files and directories", &paths(all)),
            Self::State(path) => listing(
                "the cluster's state and volumes",
                std::slice::from_ref(&path.display().to_string()),
            ),
        }
    }
}

fn listing(what: &str, names: &[String]) -> String {
    let mut text = format!("  {what} ({})\n", names.len());
    for name in names.iter().take(SHOWN) {
        let _ = writeln!(text, "    {}", printable(name));
    }
    if names.len() > SHOWN {
        let _ = writeln!(text, "    and {} more", names.len() - SHOWN);
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SAVED: &str = "# Generated by iptables-save\n*nat\n:PREROUTING ACCEPT [1:2]\n:POSTROUTING ACCEPT [0:0]\n\
        :DOCKER - [0:0]\n:KUBE-SERVICES - [0:0]\n:KUBE-SVC-ABC - [0:0]\n:LONGSHORE-POSTROUTING - [0:0]\n\
        -A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
        -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER\n\
        -A POSTROUTING -m comment --comment \"see -j KUBE-SERVICES there\" -j MASQUERADE\n\
        -A POSTROUTING -j LONGSHORE-POSTROUTING\n\
        -A DOCKER -i docker0 -j RETURN\n\
        -A KUBE-SERVICES -j KUBE-SVC-ABC\nCOMMIT\n# Completed\n\
        # Generated\n*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -j ACCEPT\nCOMMIT\n";

    #[test]
    fn reset_removes_our_chains_and_what_leads_to_them() {
        let (names, input) = removal(SAVED).unwrap();
        assert_eq!(names, ["nat/KUBE-SERVICES", "nat/KUBE-SVC-ABC", "nat/LONGSHORE-POSTROUTING"]);
        assert_eq!(
            input,
            "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-SVC-ABC - [0:0]\n:LONGSHORE-POSTROUTING - [0:0]\n\
             -D PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
             -D POSTROUTING -j LONGSHORE-POSTROUTING\n\
             -X KUBE-SERVICES\n-X KUBE-SVC-ABC\n-X LONGSHORE-POSTROUTING\nCOMMIT\n"
        );
        for empty in ["", "\n", "*nat", "*nat\n:INPUT ACCEPT [0:0]\nCOMMIT\n", "# x\n"] {
            assert_eq!(removal(empty), None, "{empty:?}");
        }
    }

    #[test]
    fn reset_reads_the_target_of_a_rule_past_its_comment() {
        let table = [
            ("A -j KUBE-X", Some("KUBE-X")),
            ("A -m comment --comment \"-j KUBE-X\" -j Y", Some("Y")),
            ("A -m comment --comment \"a \\\" -j KUBE-X\" -g Y", Some("Y")),
            ("A -m comment --comment one-word -j Y", Some("Y")),
            ("A -m comment --comment \"never closed -j KUBE-X", None),
            ("A", None),
            ("A -j", None),
        ];
        for (rule, expected) in table {
            assert_eq!(target(rule), expected, "{rule}");
        }
    }

    #[test]
    fn reset_knows_kube_proxys_tables() {
        let list = "table ip filter\ntable ip kube-proxy\ntable ip6 kube-proxy\ntable bridge kube-proxy\ntable ip kube-proxy2\n";
        assert_eq!(tables(list), ["ip kube-proxy", "ip6 kube-proxy"]);
    }

    #[test]
    fn reset_goes_from_what_runs_to_what_says_what_it_was() {
        let pod = Pod { id: "1".into(), name: "default/a\x1b".into() };
        let facts = Facts {
            services: vec!["longshore.service".into()],
            pods: vec![pod],
            mounts: vec!["/k/a".into(), "/k/a/b".into()],
            cgroups: vec!["/sys/fs/cgroup/kubepods".into()],
            rules: vec![("iptables-restore", SAVED.into()), ("ip6tables-restore", String::new())],
            tables: "table ip kube-proxy".into(),
            routes: "10.244.1.0/24 via 198.18.2.2 dev eth0".into(),
            has_bridge: true,
            files: (0..20).map(|n| format!("/f{n}").into()).collect(),
            state: Some("/var/lib/longshore".into()),
            ..Facts::default()
        };
        let plan = plan(&facts);
        assert_eq!(plan.steps.len(), 10);
        assert!(matches!(plan.steps.first(), Some(Step::Services(_))));
        assert!(matches!(plan.steps.last(), Some(Step::State(_))));
        assert_eq!(plan.steps[2], Step::Mounts(vec!["/k/a/b".into(), "/k/a".into()]));
        let text = plan.text();
        for part in [
            "default/a \n",
            "nat/KUBE-SERVICES",
            "10.244.1.0/24",
            "and 12 more",
            "/var/lib/longshore",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn reset_says_when_pods_are_not_known() {
        let facts = Facts {
            runtime: "unix:///x".into(),
            pods_unknown: Some("gone".into()),
            ..Facts::default()
        };
        let plan = plan(&facts);
        assert!(plan.steps.is_empty());
        assert!(plan.text().contains("unix:///x does not answer: gone"));
        assert!(super::plan(&Facts::default()).steps.is_empty());
    }

    proptest! {
        #[test]
        fn reset_removes_nothing_else(rules in "(\\*[a-z]{1,5}\n|:[A-Z-]{1,9} - \\[0:0\\]\n|-A [A-Z]{1,4} -j [A-Z-]{1,9}\n|.{0,20}\n){0,12}") {
            if let Some((_, input)) = removal(&rules) {
                for line in input.lines() {
                    let chain = line.strip_prefix("-X ").or(line.strip_prefix(':').and_then(|l| l.split(' ').next()));
                    if let Some(chain) = chain {
                        prop_assert!(chain.starts_with("KUBE-") || chain.starts_with("LONGSHORE-"), "{}", line);
                    }
                }
            }
        }
    }
}
