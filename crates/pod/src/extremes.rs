//! Hostile pods, nodes and runtime responses through every function of this crate. Tests run with
//! overflow checks, so a sum that would wrap in a release build fails them too.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{Node, Pod, PodStatus};
use longshore_gates::DeclaredFeatures;
use longshore_generators::{NUMBERS, TIMES, examples, hostile, text};
use proptest::prelude::*;

use crate::admission::{
    self, AdmissionContext, Ledger, NodeCapabilities, NodeView, Reservation, Sysctls,
};
use crate::backoff::{Backoff, RESTART_BASE, RESTART_MAX};
use crate::eviction::{
    self, Layout, NodePressure, Observation, Observations, Signal, ThresholdConfig,
};
use crate::observed::{self, Enforced, ObservedPod, Sandbox, State, User};
use crate::plan::{Inputs, backoff_key, plan, restarts_all};
use crate::probes::{ProbeKind, ProbeResult, ProbeResults};
use crate::resize::{self, PodResources, Rules};
use crate::spec::Gates;
use crate::status::{self, Context, Verdict};
use crate::usage::{CgroupUsage, ContainerUsage, Memory, PodUsage, Space};
use crate::{Timestamp, deadline, downward, expand, hash, qos, resources, spec, termination};

const SIGNALS: [Signal; 9] = [
    Signal::Memory,
    Signal::AllocatableMemory,
    Signal::NodeFs,
    Signal::NodeFsInodes,
    Signal::ImageFs,
    Signal::ImageFsInodes,
    Signal::ContainerFs,
    Signal::ContainerFsInodes,
    Signal::Pid,
];

fn number() -> impl Strategy<Value = i64> {
    prop_oneof![4 => prop::sample::select(NUMBERS.to_vec()), 1 => any::<i64>()]
}

fn time() -> impl Strategy<Value = Timestamp> {
    let known = TIMES.iter().filter_map(|time| time.parse().ok());
    let known = known.chain([Timestamp::MIN, Timestamp::MAX, Timestamp::UNIX_EPOCH]);
    prop::sample::select(known.collect::<Vec<_>>())
}

fn size() -> impl Strategy<Value = u64> {
    prop::sample::select(vec![0, 1, 1 << 20, i64::MAX as u64, u64::MAX - 1, u64::MAX])
}

/// The example pod for what does not decode, which is a valid result as well.
fn any_pod() -> impl Strategy<Value = Pod> {
    hostile(examples::pod(), 12).prop_map(|pod| {
        let pod = serde_json::from_value(pod);
        pod.unwrap_or_else(|_| serde_json::from_value(examples::pod()).unwrap())
    })
}

fn any_node() -> impl Strategy<Value = Node> {
    hostile(examples::node(), 6).prop_map(|node| {
        let node = serde_json::from_value(node);
        node.unwrap_or_else(|_| serde_json::from_value(examples::node()).unwrap())
    })
}

fn any_run() -> impl Strategy<Value = observed::Container> {
    let state = prop_oneof![
        Just(State::Created),
        Just(State::Unknown),
        time().prop_map(|started_at| State::Running { started_at }),
        (prop::option::of(time()), time(), number(), text()).prop_map(
            |(started_at, finished_at, code, message)| State::Exited {
                started_at,
                finished_at,
                exit_code: code as i32,
                reason: "Error".to_owned(),
                message,
            }
        ),
    ];
    let names = ["init", "sidecar", "main", "second", "debug", "other"];
    let enforced = (number(), number(), number()).prop_map(|(request, limit, memory)| Enforced {
        cpu_request: Some(request),
        cpu_limit: Some(limit),
        memory_limit: Some(memory),
    });
    let numbers = (number(), number(), number(), prop::option::of(any::<u64>()));
    let parts =
        (prop::sample::select(names.to_vec()), state, time(), numbers, prop::option::of(enforced));
    parts.prop_map(|(name, state, created_at, (restarts, uid, gid, hash), resources)| {
        observed::Container {
            id: format!("{name}-{restarts}"),
            name: name.to_owned(),
            sandbox_id: "s".to_owned(),
            restart_count: restarts as u32,
            hash,
            created_at,
            image: "i".to_owned(),
            image_ref: "sha256:i".to_owned(),
            log_path: String::new(),
            user: Some(User { uid, gid, groups: vec![gid] }),
            mounted_images: Default::default(),
            stop_signal: None,
            resources,
            state,
        }
    })
}

fn any_observation() -> impl Strategy<Value = ObservedPod> {
    let sandbox = (number(), any::<bool>(), time(), any::<bool>()).prop_map(
        |(attempt, ready, created_at, host_network)| Sandbox {
            id: "s".to_owned(),
            attempt: attempt as u32,
            ready,
            created_at,
            ips: vec!["10.0.0.2".to_owned()],
            host_network,
            handler: String::new(),
        },
    );
    let sandboxes = prop::collection::vec(sandbox, 0..3);
    let containers = prop::collection::vec(any_run(), 0..6);
    (sandboxes, containers, any::<bool>()).prop_map(|(sandboxes, containers, partial)| {
        ObservedPod {
            uid: "u".to_owned(),
            name: "p".to_owned(),
            namespace: "ns".to_owned(),
            sandboxes,
            containers,
            partial,
        }
    })
}

fn any_usage() -> impl Strategy<Value = PodUsage> {
    let space = || (size(), size()).prop_map(|(bytes, inodes)| Space { bytes, inodes });
    (size(), size(), space(), space(), space(), space()).prop_map(
        |(number, limit, rootfs, logs, volume, own)| {
            let memory = Memory { working_set: number, limit: Some(limit), ..Memory::default() };
            let cgroup = CgroupUsage {
                cpu: Some(number),
                memory: Some(memory),
                swap: Some(number),
                tasks: Some(number),
            };
            let container = |name: &str| ContainerUsage {
                name: name.to_owned(),
                cgroup,
                rootfs: Some(rootfs),
                logs: Some(logs),
            };
            PodUsage {
                cgroup,
                containers: vec![container("main"), container("second")],
                volumes: [("scratch".to_owned(), volume), ("memory".to_owned(), volume)].into(),
                own,
            }
        },
    )
}

proptest! {
    /// Finding 1.
    #[test]
    fn extremes_of_pods_are_planned_and_reported(
        pod in any_pod(),
        observed in any_observation(),
        now in time(),
        before in time(),
        (base, max) in (number(), number()),
        (probe_succeeds, is_over) in (any::<bool>(), any::<bool>()),
    ) {
        let mut backoff = Backoff::new(RESTART_BASE, RESTART_MAX);
        let mut odd = Backoff::new(SignedDuration::from_secs(base), SignedDuration::from_secs(max));
        let mut probes = ProbeResults::default();
        if let Some(pod_spec) = &pod.spec {
            for (kind, container) in spec::containers(pod_spec) {
                backoff.next(&backoff_key(container), before, now);
                odd.next(&backoff_key(container), before, now);
                odd.next(&backoff_key(container), now, before);
                odd.waits_until(&backoff_key(container), before, now);
                qos::oom_score_adj(&pod, container, base);
                qos::may_swap(&pod, container);
                hash::container_hash(container);
                spec::restarts(pod_spec, kind, container, base as i32, Gates::default());
            }
            resources::status_resources(pod_spec, probe_succeeds);
            resources::net_requests(pod_spec);
            resources::net_limits(pod_spec);
            termination::order(pod_spec);
            restarts_all(pod_spec, &observed, Gates::default());
        }
        for run in &observed.containers {
            probes.set(&run.id, ProbeKind::Liveness, if probe_succeeds { ProbeResult::Success } else { ProbeResult::Failure });
        }
        let actuated = pod.spec.as_ref().map_or_else(PodResources::default, |pod_spec| {
            PodResources::requested(pod_spec, Gates::default())
        });
        let starting = HashSet::new();
        for backoff in [&backoff, &odd] {
            let inputs = Inputs {
                probes: &probes,
                starting: &starting,
                backoff,
                actuated: &actuated,
                now,
                gates: Gates::default(),
            };
            plan(&pod, &observed, inputs).wake_at();
        }
        let (pending, resizing) = status::resize_status(&pod.status.clone().unwrap_or_default());
        let context = Context {
            probes: &probes,
            terminal: is_over,
            verdict: is_over.then(|| Verdict::failed("Evicted", "m")),
            runtime: "containerd",
            actuated: &actuated,
            pending: pending.as_ref(),
            resizing: resizing.as_ref(),
            ..Context::default()
        };
        let last_status = pod.status.clone().unwrap_or_default();
        let first = status::status(&pod, &observed, &last_status, &context, before);
        let second = status::status(&pod, &observed, &first, &context, now);
        serde_json::to_vec(&second).unwrap();
        deadline::deadline(&pod, &second, now);
        deadline::deadline(&pod, &PodStatus::default(), before);
        status::rejected(&pod, &Verdict::failed("r", "m"), now);
        admission::admission_order(&pod);
        admission::was_admitted(&pod);
        qos::class(&pod);
    }

    #[test]
    fn extremes_of_pods_are_admitted_or_rejected(
        pod in any_pod(),
        others in prop::collection::vec(any_pod(), 0..4),
        node in any_node(),
        pressure in (any::<bool>(), any::<bool>(), any::<bool>()),
    ) {
        let mut ledger = Ledger::default();
        let tickets: Vec<_> = others.iter().map(|pod| ledger.enter(Reservation::new(pod))).collect();
        let capabilities = NodeCapabilities {
            sysctls: Sysctls::new(&[], (6, 1)).unwrap(),
            app_armor: false,
            supplemental_groups_policy: false,
            pod_level_resources: true,
            toleration_comparisons: true,
            declared_features: Some(DeclaredFeatures::default()),
        };
        let view = NodeView::new(&node, &node);
        let (memory, disk, pid) = pressure;
        let pressure = NodePressure { memory, disk, pid };
        let terms = AdmissionContext { capabilities: &capabilities, node: &view, ledger: &ledger, pressure };
        admission::decide(&pod, &terms, |_| Ok(()));
        let mut critical = pod.clone();
        if let Some(spec) = &mut critical.spec {
            spec.priority = Some(2_000_001_000);
        }
        admission::decide(&critical, &terms, |_| Ok(()));
        admission::check_resize(&pod, &terms);
        tickets.into_iter().for_each(|ticket| drop(ledger.release(ticket)));
        let rules = Rules { limited_swap: true, static_cpus: true, static_memory: true, pod_level: true };
        for other in &others {
            resize::infeasible(&pod, other, rules);
            resize::operations(&pod, other);
            let given = other.spec.as_ref().map(|spec| PodResources::in_force(spec, Gates::default()));
            let given = given.unwrap_or_default();
            resize::allocated(&pod, &given, Gates::default());
            resize::ceiling(&pod, &given);
            resize::is_pod_stale(&pod, &given, Gates::default());
            resize::stale(&pod, &ObservedPod::default(), &given, Gates::default());
        }
    }

    #[test]
    fn extremes_of_pods_have_environments(pod in any_pod(), node in any_node(), input in text(), path in text()) {
        let lists = node.status.and_then(|status| status.allocatable).unwrap_or_default();
        let addresses = downward::Addresses { host: &[], pod: &[] };
        let _ = downward::field_ref_value(&pod, &path, addresses);
        let _ = downward::metadata_value(&pod, &path);
        for (_, container) in pod.spec.iter().flat_map(spec::containers) {
            for variable in container.env.iter().flatten() {
                let source = variable.value_from.as_ref();
                if let Some(field) = source.and_then(|source| source.field_ref.as_ref()) {
                    let _ = downward::field_ref_value(&pod, &field.field_path, addresses);
                }
                if let Some(field) = source.and_then(|source| source.resource_field_ref.as_ref()) {
                    let _ = downward::resource_field_value(&pod, Some(container), field, &lists);
                }
            }
        }
        let _ = expand::expand(&input, 1 << 20, |_| Some("x"));
        let quantity = k8s_openapi::apimachinery::pkg::api::resource::Quantity(input);
        qos::milli(&quantity);
        resources::canonical(&quantity);
    }

    #[test]
    fn extremes_of_usage_are_ranked(
        pods in prop::collection::vec((any_pod(), prop::option::of(any_usage())), 1..4),
        seen in prop::collection::vec((number(), number()), SIGNALS.len()),
        values in prop::collection::vec(text(), 4),
        seconds in size(),
        after in size(),
    ) {
        let observations: Observations = SIGNALS
            .into_iter()
            .zip(seen)
            .map(|(signal, (available, capacity))| (signal, Observation { available, capacity }))
            .collect();
        let texts = |value: &String| -> BTreeMap<String, String> {
            SIGNALS.iter().map(|signal| (signal.as_str().to_owned(), value.clone())).collect()
        };
        let spans = SIGNALS.iter().map(|signal| (signal.as_str().to_owned(), Duration::from_secs(seconds)));
        let texts = ThresholdConfig {
            hard: &texts(&values[0]),
            soft: &texts(&values[1]),
            soft_grace: &spans.collect(),
            minimum_reclaim: &texts(&values[2]),
        };
        let mut due = eviction::thresholds(texts, true).unwrap_or_default();
        if due.is_empty() {
            let hard = BTreeMap::from([("memory.available".to_owned(), "5%".to_owned())]);
            let none = BTreeMap::new();
            let texts = ThresholdConfig { hard: &hard, soft: &none, soft_grace: &BTreeMap::new(), minimum_reclaim: &texts.minimum_reclaim.clone() };
            due = eviction::thresholds(texts, false).unwrap_or_default();
        }
        let mut tracker = eviction::Tracker::new(due.clone(), Duration::from_secs(seconds));
        let now = Instant::now();
        tracker.evaluate(&observations, now);
        tracker.evaluate(&observations, now.checked_add(Duration::from_secs(after)).unwrap_or(now));
        tracker.evaluate(&observations, now);
        for threshold in &due {
            let _ = threshold.headroom(&observations);
        }
        let mut candidates: Vec<_> = pods
            .iter()
            .map(|(pod, usage)| eviction::Candidate { pod, usage: usage.as_ref() })
            .collect();
        for layout in [Layout::of(1, 1, 1), Layout::of(1, 2, 2), Layout::of(1, 2, 1)] {
            for signal in SIGNALS {
                eviction::rank(&mut candidates, signal, layout);
                for candidate in &candidates {
                    eviction::eviction_message(signal.resource(), *candidate, &due, &observations);
                }
            }
            for (pod, usage) in &pods {
                eviction::exceeded(pod, &usage.clone().unwrap_or_default(), layout);
            }
        }
    }
}
