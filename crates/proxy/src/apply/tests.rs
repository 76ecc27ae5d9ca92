use super::cleanup::removal;
use super::command::fault;
use super::detect::{Detected, choose_variant, parse_version};
use super::lock::holder_in;
use super::*;

#[test]
fn iptables_variant_by_hint_or_number_of_rules() {
    let detected = |installed, hint, rules| Detected { installed, hint, rules };
    let none = Detected::default();
    for (nft, legacy, chosen) in [
        (none, none, None),
        (detected(true, false, 0), none, Some(Variant::Nft)),
        (none, detected(true, false, 0), Some(Variant::Legacy)),
        (detected(true, false, 0), detected(true, false, 0), Some(Variant::Nft)),
        (detected(true, false, 3), detected(true, false, 3), Some(Variant::Nft)),
        (detected(true, false, 3), detected(true, false, 4), Some(Variant::Legacy)),
        (detected(true, true, 0), detected(true, true, 9), Some(Variant::Nft)),
        (detected(true, false, 9), detected(true, true, 0), Some(Variant::Legacy)),
    ] {
        assert_eq!(choose_variant(nft, legacy), chosen, "{nft:?} {legacy:?}");
    }
}

#[test]
fn versions_are_read() {
    for (answer, read) in [
        ("iptables v1.8.9 (nf_tables)\n", Some((Variant::Nft, Version(1, 8, 9)))),
        ("ip6tables v1.8.9 (legacy)\n", Some((Variant::Legacy, Version(1, 8, 9)))),
        ("iptables v1.6.2", Some((Variant::Legacy, Version(1, 6, 2)))),
        ("iptables v1.8", Some((Variant::Legacy, Version(1, 8, 0)))),
        ("iptables", None),
        ("iptables v1", None),
        ("iptables v1.x", None),
    ] {
        assert_eq!(parse_version(answer), read, "{answer}");
    }
}

#[test]
fn apply_error_has_the_line() {
    let input = "*nat\n:KUBE-A - [0:0]\n-A KUBE-A -j NOPE\nCOMMIT\n";
    for (stderr, line) in [
        ("iptables-restore: line 2 failed", Some((2, ":KUBE-A - [0:0]"))),
        (
            "iptables-nft-restore: line 1 failed: No chain/target/match by that name.",
            Some((1, "*nat")),
        ),
        (
            "unknown option \"--bogus\"\nError occurred at line: 3\nTry `iptables -h'",
            Some((3, "-A KUBE-A -j NOPE")),
        ),
        ("Chain 'NOPE' does not exist\nError occurred at line: 4", Some((3, "-A KUBE-A -j NOPE"))),
        ("iptables-nft-restore: line 4 failed: oh", Some((4, "COMMIT"))),
        ("line 0 failed", None),
        ("line 5 failed", None),
        ("a line of noise", None),
        ("line 99999999999999999999 failed", None),
        ("", None),
    ] {
        assert_eq!(fault(stderr, input), line, "{stderr}");
    }
}

#[test]
fn xtables_lock_holder_is_read() {
    let locks = "\
1: OFDLCK ADVISORY  READ -1 fe:00:7 201 201
2: POSIX  ADVISORY  WRITE 41 fe:00:7 0 EOF
3: FLOCK  ADVISORY  WRITE 42 fe:00:7 0 EOF
3: -> FLOCK  ADVISORY  WRITE 43 fe:00:7 0 EOF
4: FLOCK  ADVISORY  WRITE 44 fe:00:8 0 EOF
5: -> FLOCK  ADVISORY  WRITE 45 fe:00:9 0 EOF
6: FLOCK  ADVISORY
7: FLOCK  ADVISORY  WRITE -1 fe:00:a 0 EOF
";
    for (file, holder) in [
        ("fe:00:7", Some(42)),
        ("fe:00:8", Some(44)),
        ("fe:00:9", None),
        ("fe:01:7", None),
        ("fe:00:a", Some(0)),
    ] {
        assert_eq!(holder_in(locks, file), holder, "{file}");
    }
}

#[test]
fn cleanup_removes_only_our_rules() {
    let save = r#"# Generated
*nat
:PREROUTING ACCEPT [0:0]
:OUTPUT ACCEPT [3:180]
:DOCKER - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SEP-ABC - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -j DOCKER
-A OUTPUT -m comment --comment "not to KUBE-SERVICES" -j DOCKER
-A DOCKER -g KUBE-SEP-ABC
-A KUBE-SERVICES -j KUBE-SEP-ABC
COMMIT
"#;
    let texts = [
        "*nat\n-D PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
         -D DOCKER -g KUBE-SEP-ABC\nCOMMIT\n",
        "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-SEP-ABC - [0:0]\nCOMMIT\n",
        "*nat\n-X KUBE-SERVICES\n-X KUBE-SEP-ABC\nCOMMIT\n",
    ];
    assert_eq!(removal(Table::Nat, CleanupMode::All, save), texts);
    assert!(removal(Table::Mangle, CleanupMode::All, save).is_empty());
}

#[test]
fn many_chains_are_removed_in_groups() {
    let save: String = (0..1200).map(|i| format!(":KUBE-SVC-{i} - [0:0]\n")).collect();
    let texts = removal(Table::Nat, CleanupMode::All, &save);
    let sizes: Vec<usize> = texts.iter().map(|text| text.lines().count() - 2).collect();
    assert_eq!(sizes, [500, 500, 200, 500, 500, 200]);
}
