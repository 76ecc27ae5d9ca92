//! A small run: every phase works, its results are there, and nothing is left (which the program
//! itself checks). How large the results are is no test's affair.
#![allow(clippy::arithmetic_side_effects, clippy::unwrap_used)]

use std::fs;
use std::process::Command;

use serde_json::Value;

/// What the program prints and what it writes as JSON, with these arguments.
fn run(args: &[&str]) -> (String, Value) {
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("bench.json");
    let output = Command::new(env!("CARGO_BIN_EXE_longshore-bench"))
        .args(args)
        .arg("--json")
        .arg(&json)
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    (table, serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap())
}

fn assert_positive(results: &Value, paths: &[&str]) {
    for path in paths {
        let value = results.pointer(path).and_then(Value::as_f64);
        assert!(value.is_some_and(|value| value > 0.0), "{path} in {results:#}");
    }
}

#[test]
fn bench_every_phase_has_results() {
    let args = ["--pods=3", "--repeat=2", "--idle=1", "--kills=1", "--turns=2", "--device-plugin"];
    let (table, results) = run(&args);
    assert!(table.starts_with("3 pods, 2 rounds"), "{table}");
    assert_positive(
        &results,
        &[
            "/rounds/0/floors/3/seconds",
            "/rounds/1/floors/0/seconds",
            "/rounds/1/burst/seconds",
            "/rounds/1/burst/pod_seconds/p99",
            "/rounds/1/burst/memory/node/pss",
            "/rounds/1/deletion/sandboxes_seconds",
            "/idle/memory/apiserver/rss",
            "/restart/ready_seconds",
            "/deaths/counted_seconds/p50",
            "/deaths/ready_seconds/p50",
            "/probes/ready_seconds/p50",
            "/probes/unready_seconds/p50",
            "/probes/per_second",
            "/probes/descriptors/node",
        ],
    );
    assert_eq!(results.pointer("/rounds/1/floors/1"), None, "the best limit is taken");
}

#[test]
fn bench_on_docker_has_results() {
    if !longshore_testkit::Docker::is_installed() {
        println!("skipped: no dockerd on this machine");
        return;
    }
    let args = ["--runtime=docker", "--pods=2", "--idle=1", "--kills=1", "--turns=2", "--hogs=0"];
    let (table, results) = run(&args);
    assert!(table.contains("docker://"), "{table}");
    assert_positive(
        &results,
        &[
            "/rounds/0/floors/3/seconds",
            "/rounds/0/floors/0/runtime_cpu_seconds",
            "/rounds/0/burst/seconds",
            "/rounds/0/burst/memory/runtime/rss",
            "/rounds/0/deletion/sandboxes_seconds",
            "/deaths/ready_seconds/p50",
            "/probes/descriptors/runtime",
        ],
    );
}

#[test]
fn bench_volumes_only() {
    let (_, results) = run(&["--volumes=0", "--files=1200"]);
    let paths =
        ["/ownership/chown_seconds", "/ownership/node_seconds", "/ownership/skipped_seconds"];
    assert_positive(&results, &paths);
}

#[test]
fn bench_control_plane_only() {
    let args = ["--nodes=5", "--bound-pods=50", "--idle=1", "--other-services=5", "--changes=5"];
    let (_, results) = run(&args);
    let paths =
        ["/ours/bindings/per_second", "/ours/bindings/memory/peak", "/ours/idle/memory/rss"];
    assert_positive(&results, &paths);
}

#[test]
fn bench_apiserver_only() {
    let args = ["--config-maps=20", "--stored-pods=20", "--watchers=2", "--changes=3"];
    let (_, results) = run(&args);
    let servers = results["servers"].as_array().unwrap();
    assert_eq!(servers[0]["programs"], "longshore");
    for server in servers {
        assert_positive(
            &server["measurements"],
            &[
                "/start_ms",
                "/creates/per_second",
                "/gets/cpu_ms",
                "/list_ms/p50",
                "/events/latency_ms/p99",
                "/policy/with_us",
                "/full/apiserver",
                "/reconnections/all_ms",
            ],
        );
        assert_eq!(server["measurements"]["reconnections"]["refused"], 0.0, "{results:#}");
    }
}
