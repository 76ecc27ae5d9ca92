use longshore_generators::text;
use longshore_metrics::parse::{Page as Parsed, parse};
use proptest::prelude::*;

use longshore_resources::stats::fixture::{AT, any_snapshot, container, pod, snapshot};

use super::*;

fn parsed(snapshot: Snapshot) -> (String, Parsed) {
    let view = View::new(Arc::new(snapshot), "registry/pause:\"1\"\\");
    let mut page = String::new();
    for family in FAMILIES.iter() {
        let mut progress = Progress::default();
        while progress.subjects < view.subjects.len() {
            let mut text = Text::new();
            progress = view.write(family, progress, &mut text);
            assert!(text.len() <= PIECE_CAPACITY, "{}", family.name);
            page += &text.finish();
        }
    }
    let parsed = parse(&page).unwrap();
    (page, parsed)
}

#[test]
fn cadvisor_metrics_large_page_is_chunked() {
    let pods = (0..300).map(|at| {
        let (name, id) = (format!("pod-{at}"), format!("{at:064}"));
        pod(&name, &at.to_string(), AT - 9, vec![container(&id, "c", AT)])
    });
    let (text, page) = parsed(snapshot(pods.collect()));
    assert!(text.len() > 3 * PIECE_CAPACITY);
    assert_eq!(page.families["container_tasks_state"].samples.len(), 5 * (3 + 3 * 300));
}

#[test]
fn cadvisor_metrics_labels_match_upstream() {
    let (_, page) = parsed(snapshot(vec![pod("a", "1", AT - 9, vec![container("c1", "c", AT)])]));
    let id = |id: &'static str, container: &'static str, image: &'static str, name, of_pod| {
        let (namespace, pod) = if of_pod { ("ns", "a") } else { ("", "") };
        [
            ("container", container),
            ("id", id),
            ("image", image),
            ("name", name),
            ("namespace", namespace),
            ("pod", pod),
        ]
    };
    for labels in [
        id("/", "", "", "", false),
        id("/kubepods", "", "", "", false),
        id("/system.slice/kubelet.service", "", "", "", false),
        id("/kubepods/pod1", "", "", "", true),
        id("/kubepods/pod1/s-1", "", "registry/pause:\"1\"\\", "s-1", true),
        id("/kubepods/pod1/c1", "c", "registry/image:1", "c1", true),
    ] {
        let samples: Vec<_> = page.samples("container_memory_rss", &labels).collect();
        assert_eq!(samples.len(), 1, "{labels:?}");
        assert_eq!((samples[0].value, samples[0].at), (1000.0, Some(AT * 1000)));
        assert_eq!(samples[0].labels.len(), labels.len());
        let cpu: Vec<_> = page.samples("container_cpu_usage_seconds_total", &labels).collect();
        assert_eq!(cpu.len(), 1, "{labels:?}");
        assert!(cpu[0].has(&[("cpu", "total")]) && cpu[0].value == 2.5);
    }
    assert_eq!(page.families["container_memory_rss"].samples.len(), 6);
}

#[test]
fn cadvisor_metrics_units_and_labels() {
    let (_, page) = parsed(snapshot(vec![pod("a", "1", AT - 9, vec![container("c1", "c", AT)])]));
    let of = [("id", "/kubepods/pod1/c1")];
    for (name, value) in [
        ("container_cpu_cfs_throttled_periods_total", 4.0),
        ("container_spec_cpu_quota", 50_000.0),
        ("container_spec_memory_limit_bytes", 10_000.0),
        ("container_memory_working_set_bytes", 2000.0),
        ("container_memory_swap", 7.0),
        ("container_oom_events_total", 1.0),
        ("container_pressure_cpu_waiting_seconds_total", 2.5),
        ("container_pressure_io_stalled_seconds_total", 2.5),
        ("container_processes", 2.0),
        ("container_threads", 3.0),
        ("container_threads_max", 0.0),
        ("container_file_descriptors", 9.0),
        ("container_sockets", 2.0),
        ("container_ulimits_soft", -1.0),
        ("container_start_time_seconds", AT as f64),
        ("container_last_seen", AT as f64),
        ("container_fs_writes_bytes_total", 5.0),
    ] {
        assert_eq!(page.sum(name, &of), Some(value), "{name}");
    }
    for (name, labels, count) in [
        ("container_fs_reads_total", vec![("device", "/dev/sda")], 1),
        ("container_blkio_device_usage_total", vec![("operation", "Read"), ("major", "8")], 1),
        ("container_memory_failures_total", vec![("failure_type", "pgmajfault")], 2),
        ("container_network_receive_bytes_total", vec![], 0),
    ] {
        let labels: Vec<_> = labels.into_iter().chain(of).collect();
        assert_eq!(page.samples(name, &labels).count(), count, "{name}");
    }
    let of_pod = [("pod", "a"), ("interface", "eth0"), ("container", "")];
    assert_eq!(page.sum("container_network_receive_bytes_total", &of_pod), Some(100.0));
    let machine = [("id", "/")];
    assert_eq!(page.sum("container_spec_memory_limit_bytes", &machine), Some(100_000.0));
    assert_eq!(page.sum("container_memory_swap", &machine), Some(200.0));
}

#[test]
fn cadvisor_metrics_families_are_ordered_and_unique() {
    let mut names = vec!["cadvisor_version_info"];
    for part in parts() {
        match part {
            Part::Version => {}
            Part::Cgroups(family) => names.push(family.name),
            Part::Error => names.push("container_scrape_error"),
            Part::Machine => names.push("machine_"),
        }
    }
    assert!(names.is_sorted_by(|a, b| a < b), "{names:?}");
    assert!(FAMILIES.len() > 60);
    let wanted = "container_cpu_usage_seconds_total container_memory_working_set_bytes \
                  container_memory_rss container_memory_cache container_memory_swap \
                  container_network_receive_bytes_total container_network_transmit_packets_dropped_total \
                  container_fs_reads_total container_fs_writes_bytes_total container_fs_limit_bytes";
    for name in wanted.split_whitespace() {
        assert!(names.contains(&name), "{name}: dashboards ask for it");
    }
}

#[test]
fn cadvisor_metrics_have_no_duplicate_cgroups() {
    let mut twice = snapshot(Vec::new());
    twice.system.push((
        "runtime",
        longshore_resources::stats::fixture::group("/system.slice/kubelet.service"),
    ));
    let (text, page) = parsed(twice);
    assert_eq!(page.families["container_memory_rss"].samples.len(), 3, "{text}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 8))]

    /// Finding 1: with extreme stats and names, the page can be parsed.
    #[test]
    fn extremes_of_cadvisor_metrics(snapshot in any_snapshot(), image in text()) {
        let groups = snapshot.groups().count();
        let image = &image[..image.floor_char_boundary(300)];
        let view = View::new(Arc::new(snapshot), image);
        prop_assert_eq!(view.subjects.len(), groups);
        let mut page = String::new();
        for family in FAMILIES.iter() {
            let mut progress = Progress::default();
            while progress.subjects < view.subjects.len() {
                let mut text = Text::new();
                let before = progress.subjects;
                progress = view.write(family, progress, &mut text);
                prop_assert!(progress.subjects > before);
                prop_assert!(text.len() <= PIECE + (32 << 10), "{}", family.name);
                page += &text.finish();
            }
        }
        let parsed = parse(&page).map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert_eq!(parsed.families["container_last_seen"].samples.len(), groups);
    }
}
