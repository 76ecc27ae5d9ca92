//! Metrics of network devices, of pods (by their sandboxes) and of the machine.

use longshore_resources::stats::Interface;

use super::family::{Family, Subject, Values, counter};

fn by_interface(subject: &Subject<'_>, values: &mut Values<'_, '_>, of: fn(&Interface) -> u64) {
    for interface in &subject.group.network {
        values.add_of(&[("interface", &interface.name)], of(interface) as f64);
    }
}

pub(super) static FAMILIES: &[Family] = &[
    counter(
        "container_network_receive_bytes_total",
        "Cumulative count of bytes received",
        |subject, values| by_interface(subject, values, |interface| interface.received.bytes),
    ),
    counter(
        "container_network_receive_packets_total",
        "Cumulative count of packets received",
        |subject, values| by_interface(subject, values, |interface| interface.received.packets),
    ),
    counter(
        "container_network_receive_packets_dropped_total",
        "Cumulative count of packets dropped while receiving",
        |subject, values| by_interface(subject, values, |interface| interface.received.dropped),
    ),
    counter(
        "container_network_receive_errors_total",
        "Cumulative count of errors encountered while receiving",
        |subject, values| by_interface(subject, values, |interface| interface.received.errors),
    ),
    counter(
        "container_network_transmit_bytes_total",
        "Cumulative count of bytes transmitted",
        |subject, values| by_interface(subject, values, |interface| interface.sent.bytes),
    ),
    counter(
        "container_network_transmit_packets_total",
        "Cumulative count of packets transmitted",
        |subject, values| by_interface(subject, values, |interface| interface.sent.packets),
    ),
    counter(
        "container_network_transmit_packets_dropped_total",
        "Cumulative count of packets dropped while transmitting",
        |subject, values| by_interface(subject, values, |interface| interface.sent.dropped),
    ),
    counter(
        "container_network_transmit_errors_total",
        "Cumulative count of errors encountered while transmitting",
        |subject, values| by_interface(subject, values, |interface| interface.sent.errors),
    ),
];
