use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;

fn texts(limits: &Limits, unified: bool) -> Vec<String> {
    let texts = limits.writes(unified).into_iter();
    texts.map(|write| format!("{}={}", write.file, write.value)).collect()
}

fn limits(milli_cpu: i128, memory: Max, pids: Max) -> Limits {
    Limits {
        shares: Some(shares(milli_cpu)),
        cpu: Some(CpuMax::new(milli_cpu, Duration::from_millis(100))),
        memory: Some(memory),
        memory_min: Some(MIB),
        memory_low: Some(2 * MIB),
        pids: Some(pids),
        hugepages: vec![(2 * MIB, 8 * MIB)],
        cpus: None,
    }
}

#[test]
fn cgroup_limits_cpu_shares_weights_and_quota() {
    for (milli, expected, expected_weight) in [
        (0, 2, 1),
        (1, 2, 1),
        (100, 102, 4),
        (1000, 1024, 39),
        (2000, 2048, 79),
        (500_000, 262_144, 10_000),
        (i128::MAX, 262_144, 10_000),
    ] {
        assert_eq!((shares(milli), weight(shares(milli))), (expected, expected_weight), "{milli}m");
    }
    for (milli, expected) in [(0, 0), (5, 1000), (10, 1000), (500, 50_000), (2000, 200_000)] {
        assert_eq!(quota(milli, 100_000), expected, "{milli}m");
    }
    assert_eq!(quota(1500, 10_000), 15_000);
}

#[test]
fn cgroup_limits_files_by_version() {
    let limited = limits(1500, Max::At(64 * MIB), Max::At(100));
    assert_eq!(
        texts(&limited, false),
        [
            "cpu.shares=1536",
            "cpu.cfs_period_us=100000",
            "cpu.cfs_quota_us=150000",
            "memory.limit_in_bytes=67108864",
            "pids.max=100",
            "hugetlb.2MB.limit_in_bytes=8388608",
            "hugetlb.2MB.rsvd.limit_in_bytes=8388608",
        ]
    );
    assert_eq!(
        texts(&limited, true),
        [
            "cpu.weight=59",
            "cpu.max=150000 100000",
            "memory.max=67108864",
            "memory.min=1048576",
            "memory.low=2097152",
            "pids.max=100",
            "hugetlb.2MB.max=8388608",
            "hugetlb.2MB.rsvd.max=8388608",
        ]
    );
    let free = Limits { hugepages: vec![], ..limits(0, Max::Unlimited, Max::Unlimited) };
    assert_eq!(
        texts(&free, false)[1..],
        [
            "cpu.cfs_period_us=100000",
            "cpu.cfs_quota_us=-1",
            "memory.limit_in_bytes=-1",
            "pids.max=max"
        ]
    );
    let v2 = texts(&free, true);
    assert_eq!((v2[1].as_str(), v2[2].as_str()), ("cpu.max=max 100000", "memory.max=max"));
    assert!(texts(&Limits::default(), true).is_empty());
}

#[test]
fn cgroup_limits_systemd_properties() {
    let show = |limits: &Limits, unified| -> Vec<String> {
        let properties = limits.properties(unified).into_iter();
        properties
            .map(|(name, value)| match u64::try_from(value) {
                Ok(INFINITY) => format!("{name}=infinity"),
                Ok(number) => format!("{name}={number}"),
                Err(_) => format!("{name}=?"),
            })
            .collect()
    };
    let limited = limits(1500, Max::At(64 * MIB), Max::At(100));
    assert_eq!(
        show(&limited, true),
        [
            "MemoryMax=67108864",
            "CPUWeight=59",
            "CPUQuotaPeriodUSec=100000",
            "CPUQuotaPerSecUSec=1500000",
            "TasksMax=100",
            "MemoryMin=1048576",
            "MemoryLow=2097152",
        ]
    );
    assert_eq!(
        show(&limited, false),
        [
            "MemoryLimit=67108864",
            "CPUShares=1536",
            "CPUQuotaPeriodUSec=100000",
            "CPUQuotaPerSecUSec=1500000",
            "TasksMax=100",
        ]
    );
    let free = limits(0, Max::Unlimited, Max::Unlimited);
    let shown = show(&free, true).join(" ");
    assert!(shown.contains("MemoryMax=infinity"), "{shown}");
    assert!(shown.contains("CPUQuotaPerSecUSec=infinity"), "{shown}");
    assert!(shown.contains("TasksMax=infinity"), "{shown}");
}

#[test]
fn cgroup_limits_systemd_cpu_quota_rounding() {
    for (milli, period, per_second, quota) in [
        (1500, 100, 1_500_000, 150_000),
        (15, 100, 20_000, 2000),
        (10, 100, 10_000, 1000),
        (333, 10, 340_000, 3400),
    ] {
        let cpu = CpuMax::new(milli, Duration::from_millis(period));
        assert_eq!(cpu.per_second(), Some(per_second), "{milli}m in {period}ms");
        assert_eq!(cpu.rounded().quota, Some(quota), "{milli}m in {period}ms");
    }
    assert_eq!(CpuMax::new(0, Duration::from_millis(100)).rounded().quota, None);
}

#[test]
fn cgroup_limits_cpuset_bits() {
    for (list, expected) in [
        ("0", Some(vec![1])),
        ("0-3,8", Some(vec![0b1111, 1])),
        ("1, 3-5,", Some(vec![0b11_1010])),
        ("17", Some(vec![0, 0, 2])),
        ("", None),
        ("3-1", None),
        ("0-99999999", None),
        ("x", None),
    ] {
        assert_eq!(cpu_bits(list), expected, "{list:?}");
    }
}

proptest! {
    #[test]
    fn cgroup_limits_rounding_is_never_less(milli in 1i128..1_000_000, period in 1u64..1000) {
        let cpu = CpuMax::new(milli, Duration::from_millis(period));
        prop_assert!(cpu.rounded().quota >= cpu.quota);
        prop_assert_eq!(cpu.rounded().rounded(), cpu.rounded());
    }

    #[test]
    fn cgroup_limits_cpu_weight_is_monotonic(a in 0i128..10_000_000, b in 0i128..10_000_000) {
        let (less, more) = (a.min(b), a.max(b));
        prop_assert!(shares(less) <= shares(more));
        prop_assert!(weight(shares(less)) <= weight(shares(more)));
    }
}
