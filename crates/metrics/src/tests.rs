use std::thread;
use std::time::Duration;

use longshore_generators::{NUMBERS, text};
use proptest::prelude::*;

use super::parse::{Page, parse};
use super::*;

fn read(registry: &Registry) -> Page {
    let text = registry.text();
    parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[test]
fn metrics_text_format() {
    let registry = Registry::default();
    registry.gauge("b", "a \"quote\", a \\ and\na line").set(-1.5);
    let runs = registry.counters("a_total", "of runs", ["kind", "code"]);
    runs.with(["x\"y\\z\n", "1"]).add(3);
    runs.with(["other", ""]).inc();
    let histogram = registry.histogram("c_seconds", "of time", Buckets::of(&[0.1, 1.0]));
    for value in [0.05, 0.1, 0.5, 7.0, f64::NAN] {
        histogram.observe(value);
    }
    registry.histograms("d_seconds", "nothing yet", ["kind"], Buckets::usual());
    let expected = r#"# HELP a_total of runs
# TYPE a_total counter
a_total{kind="other",code=""} 1
a_total{kind="x\"y\\z\n",code="1"} 3
# HELP b a "quote", a \\ and\na line
# TYPE b gauge
b -1.5
# HELP c_seconds of time
# TYPE c_seconds histogram
c_seconds_bucket{le="0.1"} 2
c_seconds_bucket{le="1"} 3
c_seconds_bucket{le="+Inf"} 4
c_seconds_sum 7.65
c_seconds_count 4
"#;
    assert_eq!(registry.text(), expected);
    let page = read(&registry);
    assert_eq!(page.sum("a_total", &[("kind", "x\"y\\z\n")]), Some(3.0));
    assert_eq!(page.families["b"].help, "a \"quote\", a \\ and\na line");
}

#[test]
fn metrics_slots_are_written_by_the_last() {
    let registry = Registry::default();
    let slot = registry.slot();
    assert_eq!(registry.text(), "");
    for value in [1.0, 2.0] {
        slot.set(move |text| text.gauge("a", "of a", value));
    }
    assert_eq!(read(&registry).sum("a", &[]), Some(2.0));
}

#[test]
fn metrics_families_are_described_and_counted() {
    let registry = Registry::default();
    registry.counters("b_total", "[STABLE] of b", ["kind", "code"]).with(["x", "1"]).inc();
    registry.gauge("a", "[ALPHA] of a");
    registry.histograms("c_seconds", "[STABLE] of c", ["kind"], Buckets::usual());
    registry.counter("d_total", "of no level");
    let families = registry.families();
    let names: Vec<_> = families.iter().map(|family| (family.name, family.kind)).collect();
    assert_eq!(
        names,
        [
            ("a", Kind::Gauge),
            ("b_total", Kind::Counter),
            ("c_seconds", Kind::Histogram),
            ("d_total", Kind::Counter),
        ]
    );
    assert_eq!(families[1].labels, ["kind", "code"]);
    assert!(!read(&registry).families.contains_key("registered_metrics_total"));
    registry.count_families();
    let page = read(&registry);
    let count = |level: &str| page.sum("registered_metrics_total", &[("stability_level", level)]);
    assert_eq!((count("STABLE"), count("ALPHA"), count("BETA")), (Some(2.0), Some(1.0), None));
    assert_eq!(page.sum("hidden_metrics_total", &[]), Some(0.0));
}

#[test]
fn metrics_series_are_removed_and_restarted() {
    let registry = Registry::default();
    let family = registry.counters("a", "", ["pod", "result"]);
    let kept = family.with(["p", "ok"]);
    family.with(["p", "bad"]).inc();
    family.with(["q", "ok"]).inc();
    family.remove(["p", "bad"]);
    family.remove(["p", "unknown"]);
    kept.add(4);
    let again = family.clone().with(["p", "ok"]);
    assert_eq!(again.get(), 4);
    assert_eq!(read(&registry).series(), 2);
    family.retain(|[pod, _]| pod.as_ref() == "q");
    assert_eq!(read(&registry).samples("a", &[]).count(), 1);
    assert_eq!(family.with(["p", "ok"]).get(), 0);
}

#[test]
fn metrics_series_are_bounded_on_request() {
    let registry = Registry::default();
    let counters = registry.counters("a_total", "help", ["name"]);
    for name in ["x", "y", "z", "x"] {
        if let Some(counter) = counters.with_at_most(2, [name]) {
            counter.inc();
        }
    }
    let page = read(&registry);
    let count = |name| page.sum("a_total", &[("name", name)]);
    assert_eq!(["x", "y", "z"].map(count), [Some(2.0), Some(1.0), None]);
}

#[test]
fn metrics_collectors_write_timestamps() {
    let registry = Registry::default();
    registry.collect(|text| {
        let labels = Labels::new(&[("pod", "p")]);
        let mut samples = text.family("x_bytes", "of x", Kind::Gauge);
        samples.add_at(&labels, 1e18, &SampleTime::of_millis(1_700_000_000_123));
        samples.add_of(&labels, &[("device", "d")], f64::INFINITY, None);
        text.family("y", "nothing", Kind::Counter);
    });
    let page = read(&registry);
    let times: Vec<_> = page.samples("x_bytes", &[("pod", "p")]).map(|one| one.at).collect();
    assert_eq!(times, [Some(1_700_000_000_123), None]);
    assert!(!page.families.contains_key("y"));
}

#[test]
fn metrics_family_continues_in_the_next_chunk() {
    let piece = |begun: bool, count: u32| {
        let mut text = Text::new();
        let mut samples = text.family("x", "of x", Kind::Gauge).continued(begun);
        (0..count).for_each(|at| samples.add(&Labels::NONE, at.into()));
        let begun = samples.begun();
        (begun, text.finish())
    };
    assert_eq!(piece(false, 0), (false, String::new()));
    assert_eq!(piece(false, 1), (true, "# HELP x of x\n# TYPE x gauge\nx 0\n".to_owned()));
    assert_eq!(piece(true, 1), (true, "x 0\n".to_owned()));
    assert_eq!(piece(true, 0), (true, String::new()));
}

#[test]
fn metrics_updates_are_atomic() {
    let registry = Registry::default();
    let family = registry.histograms("h", "", ["by"], Buckets::linear(1.0, 1.0, 3));
    let gauge = registry.gauge("g", "");
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for at in 0..1000_u32 {
                    family.with([["a", "b"][at as usize % 2]]).observe(f64::from(at % 5));
                    gauge.add(0.5);
                }
            });
        }
    });
    let page = read(&registry);
    assert_eq!(page.sum("h_count", &[]), Some(4000.0));
    assert_eq!(page.sum("h_sum", &[]), Some(8000.0));
    assert_eq!(page.sum("h_bucket", &[("le", "1")]), Some(1600.0));
    assert_eq!(gauge.get(), 2000.0);
}

#[test]
fn metrics_bucket_bounds_match_labels() {
    assert_eq!(Buckets::exponential(1.0, 2.0, 4), Buckets::of(&[1.0, 2.0, 4.0, 8.0]));
    let both = Buckets::linear(1.0, 1.0, 2).then(&Buckets::exponential(4.0, 4.0, 2));
    assert_eq!(both, Buckets::of(&[1.0, 2.0, 4.0, 16.0]));
}

#[tokio::test]
async fn process_metrics_are_written() {
    let registry = Registry::default();
    register_process_metrics(&registry, tokio::runtime::Handle::current());
    register_version(
        &registry,
        Version { kubernetes: "v1.36.1", commit: "", platform: "linux/amd64" },
    );
    let rest = RestClient::new(&registry);
    rest.request("GET", "h:6443", Some(200), Duration::from_millis(30));
    rest.request("GET", "h:6443", None, Duration::from_secs(90));
    rest.waited("GET", "h:6443", Duration::ZERO);
    let checks = Healthchecks::new(&registry);
    checks.checked("ping", "healthz", true);
    checks.checked("ping", "healthz", false);
    let waiting = tokio::spawn(std::future::pending::<()>());
    let page = read(&registry);
    waiting.abort();
    let value = |name| page.sum(name, &[]).unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let age = now.as_secs_f64() - value("process_start_time_seconds");
    assert!((-2.0..3600.0).contains(&age), "{age}");
    assert!(value("process_resident_memory_bytes") > 1e6);
    assert!(value("process_virtual_memory_bytes") > value("process_resident_memory_bytes"));
    assert!(value("process_open_fds") >= 3.0 && value("process_max_fds") >= 3.0);
    assert!(value("process_cpu_seconds_total") < 3600.0);
    assert!(value("go_goroutines") >= 1.0);
    let version = [("major", "1"), ("minor", "36"), ("git_version", "v1.36.1")];
    assert_eq!(page.sum("kubernetes_build_info", &version), Some(1.0));
    assert_eq!(page.sum("rest_client_requests_total", &[("code", "<error>")]), Some(1.0));
    let slow = [("verb", "GET"), ("host", "h:6443"), ("le", "60")];
    assert_eq!(page.sum("rest_client_request_duration_seconds_bucket", &slow), Some(1.0));
    assert_eq!(value("kubernetes_healthcheck"), 0.0);
    assert_eq!(value("kubernetes_healthchecks_total"), 2.0);
}

#[test]
fn metrics_parser_is_strict() {
    for (page, complaint) in [
        ("a 1\n", "no family"),
        ("# TYPE a gauge\na 1", "no end"),
        ("# TYPE a gauge\na 1\na 1\n", "twice"),
        ("# TYPE a gauge\na{b=\"1\",c=\"2\"} 1\na{c=\"2\",b=\"1\"} 1\n", "twice"),
        ("# TYPE a gauge\n# TYPE a gauge\na 1\n", "twice"),
        ("# TYPE a gauge\na 1\n# HELP a late\n", "after"),
        ("# TYPE a gauge\na 1\n# TYPE b gauge\nb 1\n# TYPE a gauge\n", "two places"),
        ("# TYPE a gauge\na 1\n# TYPE b gauge\nb 1\na{x=\"1\"} 1\n", "no family"),
        ("# TYPE a gauge\n", "no samples"),
        ("# TYPE a counter\na -1\n", "counter"),
        ("# TYPE a counter\na NaN\n", "counter"),
        ("# TYPE a_total info\na_total 1\n", "no kind"),
        ("# TYPE 1a gauge\n1a 1\n", "not a metric name"),
        ("# TYPE a gauge\na{b-c=\"1\"} 1\n", "not a label name"),
        ("# TYPE a gauge\na{b=\"1\",b=\"2\"} 1\n", "twice"),
        ("# TYPE a gauge\na{b=\"\\t\"} 1\n", "escaped"),
        ("# TYPE a gauge\na{b=\"1} 1\n", "quote"),
        ("# TYPE a gauge\na{b=\"1\" } 1\n", "after the label"),
        ("# TYPE a gauge\na{b=\"1\",} 1\n", "after the label"),
        ("# TYPE a gauge\na  1\n", "number"),
        ("# TYPE a gauge\na inf\n", "number"),
        ("# TYPE a gauge\na 1 2.5\n", "milliseconds"),
        ("# TYPE h histogram\nh 1\n", "no family"),
        ("# TYPE h histogram\nh_bucket{le=\"1\"} 1\nh_sum 1\nh_count 1\n", "add up"),
        ("# TYPE h histogram\nh_bucket{le=\"+Inf\"} 2\nh_sum 1\nh_count 1\n", "add up"),
        ("# TYPE h histogram\nh_bucket{le=\"+Inf\"} 1\nh_count 1\n", "add up"),
        (
            "# TYPE h histogram\nh_bucket{le=\"1\"} 2\nh_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 1\n",
            "add up",
        ),
    ] {
        let error = parse(page).unwrap_err().to_string();
        assert!(error.contains(complaint), "{page}: {error}");
    }
    parse("").unwrap();
    parse("# a remark\n\n# TYPE a untyped\na{b=\"\"} 1e-9 -5\n").unwrap();
}

proptest! {
    #[test]
    fn metrics_text_round_trip(
        series in proptest::collection::btree_map((".*", ".*"), any::<f64>(), 0..20),
        help in "[^ ]*",
    ) {
        let registry = Registry::default();
        let help: &'static str = help.leak();
        let family = registry.gauges("a_bytes", help, ["one", "two"]);
        for ((one, two), value) in &series {
            family.with([one, two]).set(*value);
        }
        let page = parse(&registry.text()).unwrap();
        prop_assert_eq!(page.series(), series.len());
        for ((one, two), value) in &series {
            let labels = [("one", one.as_str()), ("two", two.as_str())];
            let found = page.sum("a_bytes", &labels).unwrap();
            prop_assert!(found == *value || (found.is_nan() && value.is_nan()));
        }
    }
}

fn value() -> impl Strategy<Value = f64> {
    let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, f64::MIN, -0.0, 5e-324];
    let limits = NUMBERS.map(|number| number as f64);
    let limits = limits.into_iter().chain(odd).collect::<Vec<_>>();
    prop_oneof![3 => prop::sample::select(limits), 1 => any::<f64>()]
}

proptest! {
    /// Finding 1: whatever is counted and measured, and whatever it is labelled with, the page can
    /// be read.
    #[test]
    fn extremes_of_values_make_a_page(
        labels in proptest::collection::vec((text(), text()), 1..4),
        values in proptest::collection::vec(value(), 0..12),
        counts in proptest::collection::vec(
            prop_oneof![Just(u64::MAX), Just(1), any::<u64>()], 1..4),
        took in prop_oneof![Just(Duration::MAX), any::<u64>().prop_map(Duration::from_nanos)],
        at in prop::sample::select(NUMBERS.to_vec()),
        help in text(),
    ) {
        let registry = Registry::default();
        let (one, two) = &labels[0];
        let counters = registry.counters("a_total", "of a", ["one", "two"]);
        let gauges = registry.gauges("b", "of b", ["one", "two"]);
        let histograms =
            registry.histograms("c_seconds", "of c", ["one", "two"], Buckets::usual());
        for (one, two) in &labels {
            counts.iter().for_each(|count| counters.with([one, two]).add(*count));
            for value in &values {
                gauges.with([one, two]).add(*value);
                histograms.with([one, two]).observe(*value);
            }
            histograms.with([one, two]).took(took);
        }
        let (one, two, last) = (one.clone(), two.clone(), values.last().copied());
        registry.collect(move |text| {
            let labels = Labels::new(&[("one", one.as_str())]);
            let mut samples = text.family("d", &help, Kind::Gauge);
            samples.add_at(&labels, last.unwrap_or(0.0), &SampleTime::of_millis(at));
            samples.add_of(&labels, &[("two", &two)], 1.0, Some(&SampleTime::of_millis(at)));
        });
        let text = registry.text();
        let page = parse(&text).map_err(|error| TestCaseError::fail(error.to_string()))?;
        for (one, two) in &labels {
            let labels = [("one", one.as_str()), ("two", two.as_str())];
            prop_assert_eq!(page.samples("a_total", &labels).count(), 1);
        }
        prop_assert!(page.samples("d", &[]).all(|sample| sample.at == Some(at)));
    }
}
