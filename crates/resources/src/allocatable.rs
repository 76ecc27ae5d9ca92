//! Node Allocatable: capacity minus kube and system reservations and hard eviction thresholds.
//! Pure, except for reading the machine's capacity.

use std::collections::BTreeMap;

use longshore_config::Reserved;
use longshore_machine::Machine;

use super::cgroups::{Limits, Max, shares};
use super::hugepages;

/// Amounts by resource, in thousandths of the unit.
pub type Amounts = BTreeMap<String, i128>;

/// The machine's capacity, with the disk for pods (bytes) if local storage is managed.
pub fn capacity(machine: &Machine, disk: Option<u64>) -> Amounts {
    let whole = |amount: u64| i128::from(amount) * 1000;
    let mut capacity = Amounts::from([
        ("cpu".to_owned(), whole(machine.cpus)),
        ("memory".to_owned(), whole(machine.memory)),
    ]);
    capacity.extend(disk.map(|disk| ("ephemeral-storage".to_owned(), whole(disk))));
    let pages = machine.hugepages.iter();
    capacity.extend(
        pages.map(|(size, count)| (hugepages::resource(*size), whole(size.saturating_mul(*count)))),
    );
    capacity
}

/// The allocatable part of a capacity.
pub fn allocatable(capacity: &Amounts, reserved: &Reserved) -> Amounts {
    let amounts = capacity.iter();
    let mut amounts: Amounts = amounts
        .map(|(resource, amount)| (resource.clone(), reserved.allocatable(resource, *amount)))
        .collect();
    let huge = capacity.iter().filter(|(name, _)| name.starts_with("hugepages-"));
    let huge: i128 = huge.map(|(_, amount)| amount).sum();
    if let Some(memory) = amounts.get_mut("memory") {
        *memory = (*memory - huge).max(0);
    }
    amounts
}

/// The part of a capacity that pods may use: includes what is reserved for eviction.
pub fn usable(capacity: &Amounts, reserved: &Reserved) -> Amounts {
    let amounts = capacity.iter();
    amounts.map(|(name, amount)| (name.clone(), (amount - reserved.held(name)).max(0))).collect()
}

/// Checks that reservations do not exceed the capacity; an error for each resource.
pub fn validate(capacity: &Amounts, reserved: &Reserved) -> Vec<String> {
    let exceeded = capacity.iter().filter_map(|(resource, amount)| {
        let (held, kept) = (reserved.held(resource), reserved.kept(resource, *amount));
        if held + kept <= *amount {
            return None;
        }
        let named = [
            ("kubeReserved", reserved.kube().contains_key(resource)),
            ("systemReserved", reserved.system().contains_key(resource)),
            ("evictionHard", kept > 0),
        ];
        let named = named.into_iter().filter(|(_, named)| *named).map(|(field, _)| field);
        Some(format!(
            "{}: resource {resource:?} has a reservation of {} but capacity of {}",
            named.collect::<Vec<_>>().join(", "),
            text(resource, held + kept),
            text(resource, *amount),
        ))
    });
    exceeded.collect()
}

/// An amount as a quantity: CPU in thousandths, all else in whole units.
pub fn text(resource: &str, milli: i128) -> String {
    match resource {
        "cpu" => format!("{milli}m"),
        _ => (milli / 1000).to_string(),
    }
}

/// Amounts as the limits of a cgroup.
pub fn limits(amounts: &Amounts) -> Limits {
    let whole = |resource: &str| {
        let milli = amounts.get(resource)?;
        u64::try_from(milli / 1000).ok()
    };
    Limits {
        memory: whole("memory").map(Max::At),
        pids: whole("pid").map(Max::At),
        hugepages: hugepages::SIZES
            .iter()
            .map(|size| (*size, whole(&hugepages::resource(*size)).unwrap_or(0)))
            .collect(),
        ..compressible(amounts)
    }
}

/// The limits for compressible resources only.
pub fn compressible(amounts: &Amounts) -> Limits {
    Limits { shares: amounts.get("cpu").map(|milli| shares(*milli)), ..Limits::default() }
}

/// The machine's limit of processes and threads.
pub fn pids() -> Option<u64> {
    let files = ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"];
    let read = |file| std::fs::read_to_string(file).ok()?.trim().parse().ok();
    files.into_iter().filter_map(read).min()
}

#[cfg(test)]
mod tests {
    use longshore_config::{Command, from_args};

    use super::*;

    const GIB: i128 = 1 << 30;

    fn reserved(flags: &[&str]) -> Reserved {
        let base = ["kubelet", "--fail-cgroupv1=false", "--hostname-override=n1"];
        let args = base.iter().chain(flags).map(|arg| (*arg).to_owned());
        match from_args(args).unwrap() {
            Command::Kubelet(config) => config.reserved,
            other => unreachable!("{other:?}"),
        }
    }

    fn machine() -> Amounts {
        let machine = Machine {
            cpus: 4,
            memory: 8 << 30,
            hugepages: vec![(2 << 20, 512)],
            ..Machine::default()
        };
        capacity(&machine, Some(100 << 30))
    }

    #[test]
    fn allocatable_excludes_reservations() {
        let reserved = reserved(&[
            "--kube-reserved=cpu=500m,memory=1Gi",
            "--system-reserved=cpu=250m,memory=512Mi,ephemeral-storage=10Gi",
            "--eviction-hard=memory.available<512Mi,nodefs.available<25%",
        ]);
        let (ask, use_) = (allocatable(&machine(), &reserved), usable(&machine(), &reserved));
        assert_eq!((ask["cpu"], use_["cpu"]), (3250, 3250));
        // Huge pages are memory that is taken already.
        assert_eq!((ask["memory"], use_["memory"]), (5 * GIB * 1000, 13 * GIB / 2 * 1000));
        assert_eq!(
            (ask["ephemeral-storage"], use_["ephemeral-storage"]),
            (65 * GIB * 1000, 90 * GIB * 1000)
        );
        assert_eq!(ask["hugepages-2Mi"], GIB * 1000);
        assert!(validate(&machine(), &reserved).is_empty());
        let limits = limits(&use_);
        assert_eq!(limits.shares, Some(3328));
        assert_eq!(limits.memory, Some(Max::At(13 << 29)));
        assert_eq!(limits.pids, None);
        assert_eq!(compressible(&use_), Limits { shares: Some(3328), ..Limits::default() });
    }

    #[test]
    fn allocatable_reservation_exceeds_capacity() {
        for (flags, field, resource) in [
            (vec!["--kube-reserved=cpu=5"], "kubeReserved: ", "cpu"),
            (vec!["--system-reserved=memory=9Gi"], "systemReserved, evictionHard: ", "memory"),
            (
                vec!["--kube-reserved=memory=5Gi", "--system-reserved=memory=4Gi"],
                "kubeReserved, systemReserved, evictionHard: ",
                "memory",
            ),
            (vec!["--eviction-hard=memory.available<9Gi"], "evictionHard: ", "memory"),
            (
                vec!["--system-reserved=ephemeral-storage=95Gi"],
                "systemReserved, evictionHard: ",
                "ephemeral-storage",
            ),
        ] {
            let validate = validate(&machine(), &reserved(&flags));
            assert_eq!(validate.len(), 1, "{flags:?}: {validate:?}");
            let expected = format!("{field}resource {resource:?} has a reservation of");
            assert!(validate[0].starts_with(&expected), "{validate:?}");
        }
        assert!(validate(&machine(), &reserved(&["--kube-reserved=cpu=4"])).is_empty());
    }

    #[test]
    fn allocatable_pid_limit_of_this_machine() {
        assert!(pids().unwrap() > 300);
    }
}
