//! Metrics of the machine.

use k8s_openapi::jiff::Timestamp;
use longshore_metrics::{Kind, Labels, SampleTime, Text};

use crate::stats::facts::Facts;

pub(super) fn version(facts: &Facts, text: &mut Text) {
    let help = "A metric with a constant '1' value labeled by kernel version, OS version, docker \
                version, cadvisor version & cadvisor revision.";
    let labels = Labels::new(&[
        ("cadvisorRevision", ""),
        ("cadvisorVersion", ""),
        ("dockerVersion", ""),
        ("kernelVersion", &facts.machine.kernel),
        ("osVersion", &facts.machine.os_image),
    ]);
    text.family("cadvisor_version_info", help, Kind::Gauge).add(&labels, 1.0);
}

pub(super) fn families(facts: &Facts, text: &mut Text) {
    let machine = &facts.machine;
    let (cores, sockets) = facts.cores_and_sockets();
    let labels = Labels::new(&[
        ("boot_id", machine.boot_id.as_str()),
        ("machine_id", &machine.machine_id),
        ("system_uuid", &machine.system_uuid),
    ]);
    let now = SampleTime::of_millis(Timestamp::now().as_millisecond());
    let mut gauge = |name: &str, help: &str, value: f64| {
        text.family(name, help, Kind::Gauge).add_at(&labels, value, &now);
    };
    // Books and drawers exist on s390x only.
    gauge("machine_cpu_books", "Number of CPU books.", 0.0);
    gauge("machine_cpu_cores", "Number of logical CPU cores.", machine.cpus as f64);
    gauge("machine_cpu_drawers", "Number of CPU drawers.", 0.0);
    gauge("machine_cpu_physical_cores", "Number of physical CPU cores.", cores as f64);
    gauge("machine_cpu_sockets", "Number of CPU sockets.", sockets as f64);
    let help = "Amount of memory installed on the machine.";
    gauge("machine_memory_bytes", help, machine.memory as f64);
    gauge("machine_nvm_avg_power_budget_watts", "NVM power budget.", 0.0);
    let help = "NVM capacity value labeled by NVM mode (memory mode or app direct mode).";
    let mut capacity = text.family("machine_nvm_capacity", help, Kind::Gauge);
    for mode in ["app_direct_mode", "memory_mode"] {
        capacity.add_of(&labels, &[("mode", mode)], 0.0, Some(&now));
    }
    let help = "1 if there was an error while getting machine metrics, 0 otherwise.";
    text.family("machine_scrape_error", help, Kind::Gauge).add(&Labels::NONE, 0.0);
    let help = "Amount of swap memory available on the machine.";
    text.family("machine_swap_bytes", help, Kind::Gauge).add_at(&labels, machine.swap as f64, &now);
}
