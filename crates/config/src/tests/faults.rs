//! What is refused, and in which words.

use super::*;

#[test]
fn config_command_line_errors() {
    for (args, expected) in [
        (&["--no-such"][..], "unknown flag: --no-such"),
        (&["--max-pods"], "flag needs an argument: --max-pods"),
        (&["--max-pods=x"], "invalid argument \"x\" for \"--max-pods\" flag"),
        (&["--max-pods=4294967296"], "out of range"),
        (&["--fail-swap-on", "false"], "unknown command false"),
        (&["--fail-swap-on=maybe"], "neither true nor false"),
        (&["--sync-frequency=5"], "invalid duration \"5\""),
        (&["--address=here"], "not a valid IP address"),
        (&["--register-with-taints=a=b"], "has no effect"),
        (&["--register-with-taints=a=b:Sometimes"], "NoSchedule, PreferNoSchedule or NoExecute"),
        (&["--node-labels=kubernetes.io/role=master"], "kubernetes.io"),
        (&["--node-labels=-x=1"], "letter or digit at both ends"),
        (&["--node-ip=10.0.0.1,10.0.0.2"], "at most one address of each family"),
        (&["--node-ip=ten"], "not an IP address"),
        (&["--hostname-override=_"], "not a DNS name"),
        (&["--feature-gates=NoSuch=true"], "unrecognized feature gate: NoSuch"),
        (&["--cloud-provider=aws"], "--cloud-provider"),
        (&["--cadvisor-port=65536"], "--cadvisor-port"),
        (&["--cadvisor-port=-1"], "--cadvisor-port"),
        (&["--dashboard=10247"], "is not IP:PORT"),
        (&["--dashboard=localhost:10247"], "is not IP:PORT"),
        (&["--dashboard=0.0.0.0:10247"], "is not a loopback address"),
        (&["--dashboard=[::]:10247"], "is not a loopback address"),
        (&["--dashboard=192.0.2.1:10247"], "is not a loopback address"),
        (&["-x"], "unknown shorthand flag"),
        (&["--config=/nonexistent/file"], "/nonexistent/file"),
    ] {
        let error = kubelet(args).expect_err(&format!("{args:?}"));
        assert!(error.contains(expected), "{args:?} gave {error}");
    }
}

#[test]
fn config_all_errors_are_reported_together() {
    let error = kubelet(&[
        "--port=0",
        "--oom-score-adj=2000",
        "--image-gc-low-threshold=90",
        "--hairpin-mode=loose",
        "--enforce-node-allocatable=pods,none",
        "--kube-reserved=gpu=1,cpu=lots",
        "--eviction-hard=memory.available<-1,moon.phase<1",
        "--eviction-soft=memory.available<1Gi",
        "--reserved-cpus=3-1",
    ])
    .unwrap_err();
    for field in [
        "port: 0",
        "oomScoreAdj: 2000",
        "imageGCLowThresholdPercent: 90",
        "hairpinMode: \"loose\"",
        "enforceNodeAllocatable: \"none\"",
        "kubeReserved: cannot reserve \"gpu\"",
        "kubeReserved[cpu]: \"lots\"",
        "evictionHard[memory.available]",
        "\"moon.phase\"",
        "evictionSoftGracePeriod",
        "reservedSystemCPUs",
    ] {
        assert!(error.contains(field), "{field} is missing from {error}");
    }
}

#[test]
fn config_key_exchanges_are_known_and_unique() {
    let fault = |curves: &str| {
        let directory = tempfile::tempdir().unwrap();
        let text = format!("{HEADER}tlsCurvePreferences: [{curves}]\n");
        let file = write(directory.path(), "c.yaml", &text);
        kubelet(&[&format!("--config={}", file.display())]).err().unwrap_or_default()
    };
    assert_eq!(fault("29, 23, 4588"), "");
    for (curves, expected) in [
        ("0", "tlsCurvePreferences: curve preference 0 not supported"),
        ("-1", "curve preference -1 not supported"),
        ("70000", "curve preference 70000 not supported"),
        ("23, 29, 23", "tlsCurvePreferences: duplicate curve preference 23"),
    ] {
        let error = fault(curves);
        assert!(error.contains(expected), "{curves}: {error}");
    }
}
