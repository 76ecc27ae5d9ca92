use proptest::prelude::*;

use super::*;

const CPU_FILES: [(&str, &str); 3] = [
    ("none", include_str!("../testdata/cpu-none.json")),
    ("static", include_str!("../testdata/cpu-empty.json")),
    ("static", include_str!("../testdata/cpu-pods.json")),
];
const MEMORY_FILES: [(&str, &str); 2] = [
    ("None", include_str!("../testdata/memory-none.json")),
    ("Static", include_str!("../testdata/memory-pods.json")),
];

/// Files that upstream's own code wrote are read, and written again to the byte.
#[test]
fn checkpoint_round_trip() {
    for (policy, text) in CPU_FILES {
        assert_eq!(
            write_cpu(Form::Plain, policy, &read_cpu(Form::Plain, policy, text).unwrap()),
            text
        );
    }
    for (policy, text) in MEMORY_FILES {
        assert_eq!(
            write_memory(Form::Plain, policy, &read_memory(Form::Plain, policy, text).unwrap()),
            text
        );
    }
}

#[test]
fn checkpoint_must_match_checksum_and_policy() {
    let text = CPU_FILES[2].1;
    assert_eq!(
        read_cpu(Form::Plain, "static", &text.replace("9,11-12", "9,11-13")),
        Err(StateError::Corrupt)
    );
    assert_eq!(
        read_cpu(Form::Plain, "none", text).unwrap_err().to_string(),
        "configured policy \"none\" differs from state checkpoint policy \"static\""
    );
    assert!(matches!(read_cpu(Form::Plain, "static", "{"), Err(StateError::Format(_))));
    assert!(matches!(
        read_cpu(Form::Plain, "static", r#"{"policyName":"static","defaultCpuSet":"x"}"#),
        Err(StateError::Format(_))
    ));
    let text = MEMORY_FILES[1].1;
    assert_eq!(
        read_memory(Form::Plain, "Static", &text.replace("1073741824", "1073741825")),
        Err(StateError::Corrupt)
    );
    assert!(matches!(read_memory(Form::Plain, "None", text), Err(StateError::Policy { .. })));
}

#[test]
fn checkpoint_without_or_with_new_checksum_is_accepted() {
    let plain = r#"{"policyName":"static","defaultCpuSet":"0-3","checksum":0}"#;
    assert_eq!(read_cpu(Form::Plain, "static", plain).unwrap().shared, CpuSet::from([0, 1, 2, 3]));
    let value: Value = serde_json::from_str(plain).unwrap();
    let newer = checksum(Form::Plain, CPU_NEWER, &value);
    assert_ne!(newer, checksum(Form::Plain, CPU, &value));
    let text = plain.replace(":0}", &format!(":{newer}}}"));
    assert!(read_cpu(Form::Plain, "static", &text).is_ok());
}

fn json() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just(json!(null)),
        any::<i64>().prop_map(Value::from),
        "[0-9,-]{0,5}".prop_map(Value::from),
    ];
    let names =
        "policyName|defaultCpuSet|entries|machineState|cells|memoryMap|memory|type|size|[0-9]";
    let value = leaf.prop_recursive(4, 24, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::hash_map(names, inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    });
    value.prop_map(|value| value.to_string())
}

proptest! {
    #[test]
    fn checkpoint_parser_never_panics(text in prop_oneof![json(), any::<String>()]) {
        let _ = read_cpu(Form::Plain, "static", &text);
        let _ = read_memory(Form::Plain, "Static", &text);
    }

    /// A tampered file is refused or harmless, whatever stands in it.
    #[test]
    fn checkpoint_state_is_usable(
        shared in "[0-9,-]{0,6}", own in "[0-9,-]{0,4}", nodes: Vec<u32>, size: u64, count: i64,
    ) {
        let text = json!({"policyName": "static", "defaultCpuSet": shared, "entries": {"p": {"c": own}}});
        if let Ok(state) = read_cpu(Form::Plain, "static", &text.to_string()) {
            let cpus = crate::fixture::cpus("1,1,4,1,1,0");
            let mut policy = cpu::Policy::new(cpus, cpu::Options::default(), None, 1).unwrap();
            if policy.restore(state).is_ok() {
                prop_assert!(policy.release("p"));
                prop_assert_eq!(policy.state().shared.len(), 4);
            }
        }
        let text = json!({
            "policyName": "Static",
            "machineState": {"0": {"numberOfAssignments": count, "cells": nodes.clone(), "memoryMap":
                {"memory": {"total": size, "allocatable": size, "free": size, "reserved": size}}}},
            "entries": {"p": {"c": [{"numaAffinity": nodes, "type": "memory", "size": size}]}},
        });
        if let Ok(state) = read_memory(Form::Plain, "Static", &text.to_string()) {
            let machine = crate::fixture::machine("1,1,1,1,1,0", 100, 0);
            let reserved: crate::Amounts = [("memory".to_owned(), 1)].into();
            let all = [(0, reserved.clone())].into();
            let mut policy = memory::Policy::new(&machine.nodes, &all, &reserved).unwrap();
            let _ = policy.restore(state);
            policy.release("p");
        }
    }
}
