#![allow(clippy::unwrap_used)]

use std::pin::pin;

use futures::poll;
use serde_json::{Value, json};

use super::*;

const TIMEOUT: Duration = Duration::from_secs(40);

struct Line {
    path: String,
    namespace: String,
}

impl Describe for Line {
    fn digest(&self) -> Digest<'_> {
        Digest {
            verb: "get",
            path: &self.path,
            is_resource: true,
            version: "v1",
            resource: "pods",
            namespace: &self.namespace,
            name: "p",
            ..Digest::default()
        }
    }
}

fn user(name: &str) -> User {
    User::authenticated(name.into(), vec![])
}

fn arrival(name: &str, width: Width) -> Arrival {
    let line = Line { path: "/api/v1/namespaces/a/pods/p".into(), namespace: "a".into() };
    Arrival {
        width,
        is_mutating: false,
        is_watch: false,
        began: Instant::now(),
        user: name.into(),
        request: Arc::new(line),
    }
}

fn level(name: &str, limited: Value) -> PriorityLevel {
    let object = json!({
        "metadata": {"name": name, "uid": format!("{name}-uid")},
        "spec": {"type": "Limited", "limited": limited},
    });
    PriorityLevel::read(&object).unwrap()
}

fn queued(name: &str, shares: u32, length: u32) -> PriorityLevel {
    let queuing = json!({"queues": 8, "handSize": 2, "queueLengthLimit": length});
    level(
        name,
        json!({"nominalConcurrencyShares": shares, "borrowingLimitPercent": 0,
               "limitResponse": {"type": "Queue", "queuing": queuing}}),
    )
}

fn schema(name: &str, precedence: i64, user: &str, level: &str) -> FlowSchema {
    FlowSchema::read(&json!({
        "metadata": {"name": name, "uid": format!("{name}-uid")},
        "spec": {
            "matchingPrecedence": precedence,
            "priorityLevelConfiguration": {"name": level},
            "distinguisherMethod": {"type": "ByUser"},
            "rules": [{
                "subjects": [{"kind": "User", "user": {"name": user}}],
                "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"],
                                   "namespaces": ["*"], "clusterScope": true}],
                "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
            }],
        },
    }))
}

/// With a level of this many seats and queues of this length for the user `ann`.
fn control(seats: u32, length: u32) -> FlowControl {
    let control = FlowControl::new(100, TIMEOUT);
    // 95 shares with the 5 of `catch-all` make 100 seats
    let levels = vec![queued("small", seats, length), queued("rest", 95 - seats, length)];
    control.configure(levels, vec![schema("ann", 100, "ann", "small")]);
    control
}

impl FlowControl {
    fn class(&self, name: &str) -> Class {
        let line = arrival(name, Width::ONE).request;
        self.classify(&user(name), &line.digest())
    }

    async fn get(&self, name: &str) -> Result<Seat, Rejected> {
        self.admit(&self.class(name), arrival(name, Width::ONE)).await
    }

    fn load(&self, level: &str) -> (u32, u32, u32) {
        let load = self.levels.lock()[level].level.set.lock().load();
        (load.waiting, load.executing, load.seats_in_use)
    }
}

#[tokio::test(start_paused = true)]
async fn flow_control_waits_for_a_seat() {
    let control = control(1, 10);
    let first = control.get("ann").await.unwrap();
    let mut second = pin!(control.get("ann"));
    assert!(poll!(&mut second).is_pending());
    // others have seats of their own
    assert!(control.get("bob").await.is_ok());
    assert_eq!(control.load("small"), (1, 1, 1));
    drop(first);
    let second = second.await.unwrap();
    assert_eq!(control.load("small"), (0, 1, 1));
    let text = control.metrics();
    for line in [
        "current_executing_requests{flow_schema=\"ann\",priority_level=\"small\"} 1",
        "current_executing_seats{flow_schema=\"ann\",priority_level=\"small\"} 1",
        "current_inqueue_requests{flow_schema=\"ann\",priority_level=\"small\"} 0",
        "dispatched_requests_total{flow_schema=\"ann\",priority_level=\"small\"} 2",
        "nominal_limit_seats{priority_level=\"small\"} 1",
        "request_wait_duration_seconds_count{execute=\"true\",flow_schema=\"ann\",priority_level=\"small\"} 2",
        "request_execution_seconds_count{flow_schema=\"ann\",priority_level=\"small\",type=\"regular\"} 1",
    ] {
        assert!(text.contains(&format!("apiserver_flowcontrol_{line}\n")), "{line}\n{text}");
    }
    drop(second);
    assert_eq!(control.load("small"), (0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn flow_control_wait_ends_after_a_quarter_of_the_request_timeout() {
    let control = control(1, 10);
    let _first = control.get("ann").await.unwrap();
    let began = Instant::now();
    let late = Arrival { began, ..arrival("ann", Width::ONE) };
    assert_eq!(
        control.admit(&control.class("ann"), late).await.err(),
        Some(Rejected { retry_after: 1 })
    );
    assert_eq!(began.elapsed(), TIMEOUT / 4);
    assert_eq!(control.load("small"), (0, 1, 1));
    let rejected = "rejected_requests_total{flow_schema=\"ann\",priority_level=\"small\",reason=\"time-out\"} 1";
    assert!(control.metrics().contains(rejected));
    assert_eq!(control.longest_wait, TIMEOUT / 4);
    assert_eq!(FlowControl::new(1, Duration::MAX).longest_wait, LONGEST_WAIT);
}

#[tokio::test(start_paused = true)]
async fn flow_control_full_queues_reject_at_once() {
    let control = control(1, 2);
    let first = control.get("ann").await.unwrap();
    let mut waiting: Vec<_> = (0..4).map(|_| Box::pin(control.get("ann"))).collect();
    for one in &mut waiting {
        assert!(poll!(one).is_pending());
    }
    assert!(control.get("ann").await.is_err(), "two queues of two");
    // clients go: of a queue, and after they were given the seat
    drop(waiting.split_off(2));
    assert_eq!(control.load("small"), (2, 1, 1));
    drop(first);
    assert_eq!(control.load("small"), (1, 1, 1));
    drop(waiting.remove(0));
    assert_eq!(control.load("small"), (0, 1, 1));
    drop(waiting);
    assert_eq!(control.load("small"), (0, 0, 0));
    assert_eq!(control.in_flight(), [("readOnly", 0), ("mutating", 0)]);
}

#[tokio::test(start_paused = true)]
async fn flow_control_seats_of_writes_are_kept_for_their_watches() {
    let control = Arc::new(control(2, 10));
    let pods = arrival("a", Width::ONE).request;
    let digest = Digest { verb: "watch", ..pods.digest() };
    let watches: Vec<_> = (0..40).map(|_| control.count_watch(&digest, true)).collect();
    assert!(watches.iter().all(Option::is_none), "those of a node are not counted");
    let digest = Digest { name: "", ..digest };
    let watches: Vec<_> = (0..40).map(|_| control.count_watch(&digest, false)).collect();
    let request = arrival("ann", Width::ONE).request;
    let width = control.width_of_write(&control.class("ann"), &request.digest());
    assert_eq!(width, Width { last: 1, lingers: Duration::from_millis(20), ..Width::ONE });
    let seat = control.admit(&control.class("ann"), arrival("ann", width)).await.unwrap();
    drop(seat);
    assert_eq!(control.load("small"), (0, 0, 1));
    sleep(Duration::from_millis(21)).await;
    assert_eq!(control.load("small"), (0, 0, 0));
    drop(watches);
    assert_eq!(control.width_of_write(&control.class("ann"), &request.digest()), Width::ONE);
}

#[tokio::test(start_paused = true)]
async fn flow_control_change_of_levels_and_schemas() {
    let control = control(1, 10);
    let first = control.get("ann").await.unwrap();
    let mut second = pin!(control.get("ann"));
    assert!(poll!(&mut second).is_pending());
    // more seats
    let levels = || vec![queued("small", 3, 10), queued("rest", 92, 10)];
    control.configure(levels(), vec![schema("ann", 100, "ann", "small")]);
    let second = second.await.unwrap();
    // the level is deleted, and stays until its requests have ended
    control.configure(vec![queued("rest", 92, 10)], vec![schema("ann", 100, "ann", "small")]);
    assert_eq!(&*control.class("ann").schema.name, CATCH_ALL);
    assert!(control.dump_levels().contains("small,"));
    assert!(control.levels.lock()["small"].is_quiescing);
    drop((first, second));
    settle(&mut control.levels.lock(), 100, Instant::now(), &control.shared);
    assert!(!control.levels.lock().contains_key("small"));
    control.configure(vec![queued("rest", 92, 10)], vec![]);
    assert!(!control.metrics().contains("priority_level=\"small\""));
    // the level comes again
    control.configure(levels(), vec![schema("ann", 100, "ann", "small")]);
    assert_eq!(&*control.class("ann").schema.level.name, "small");
}

#[tokio::test(start_paused = true)]
async fn flow_control_levels_borrow_after_some_seconds() {
    let control = Arc::new(FlowControl::new(100, TIMEOUT));
    let lent = |name: &str, shares: u32| {
        let queuing = json!({"queues": 8, "handSize": 2, "queueLengthLimit": 50});
        level(
            name,
            json!({"nominalConcurrencyShares": shares, "lendablePercent": 50,
                   "limitResponse": {"type": "Queue", "queuing": queuing}}),
        )
    };
    control
        .configure(vec![lent("busy", 45), lent("idle", 50)], vec![schema("ann", 9, "ann", "busy")]);
    let stop = CancellationToken::new();
    let running = tokio::spawn({
        let (control, stop) = (control.clone(), stop.clone());
        async move { control.run(stop).await }
    });
    let before = control.levels.lock()["busy"].current;
    let all: Vec<_> = (0..80)
        .map(|_| {
            let control = control.clone();
            tokio::spawn(async move {
                let seat = control.get("ann").await;
                sleep(Duration::from_secs(3600)).await;
                drop(seat);
            })
        })
        .collect();
    sleep(ADJUSTMENT * 2 + Duration::from_secs(1)).await;
    let (busy, idle) = {
        let levels = control.levels.lock();
        (levels["busy"].current, levels["idle"].current)
    };
    assert!(busy > before && idle == 25, "{before} {busy} {idle}");
    assert!(
        control
            .metrics()
            .contains(&format!("current_limit_seats{{priority_level=\"busy\"}} {busy}\n"))
    );
    all.iter().for_each(tokio::task::JoinHandle::abort);
    stop.cancel();
    running.await.unwrap();
}

#[tokio::test]
async fn flow_control_mandatory_objects_are_in_force_whatever_is_stored() {
    let control = FlowControl::new(600, TIMEOUT);
    let admin = User::authenticated("root".into(), vec![crate::user::MASTERS.into()]);
    let request = arrival("root", Width::ONE).request;
    let name = |user: &User| control.classify(user, &request.digest()).schema.name.to_string();
    assert_eq!((name(&admin), name(&user("ann"))), (EXEMPT.into(), CATCH_ALL.into()));
    // what somebody has written into the store
    let stolen = |name: &str, level: &str| schema(name, 1, "ann", level);
    let levels = vec![
        level(
            CATCH_ALL,
            json!({"nominalConcurrencyShares": 0, "limitResponse": {"type": "Reject"}}),
        ),
        queued("huge", u32::MAX, 1),
    ];
    let many = (0..10_000).map(|i| schema(&format!("s{i}"), 1, "*", "none"));
    let more = (0..10_000).map(|i| schema(&format!("t{i}"), 1, &format!("u{i}"), "huge"));
    let schemas =
        [stolen(EXEMPT, "huge"), stolen(CATCH_ALL, "huge")].into_iter().chain(many).chain(more);
    control.configure(levels, schemas.collect());
    let class = control.classify(&admin, &request.digest());
    assert_eq!((&*class.schema.name, class.schema.level.is_exempt), (EXEMPT, true));
    assert_eq!(class.schema.uid, "exempt-uid", "it is the stored one");
    let mut seats = Vec::new();
    for _ in 0..2000 {
        seats.push(control.admit(&class, arrival("root", Width::ONE)).await.unwrap());
    }
    assert_eq!(name(&user("ann")), CATCH_ALL);
    assert_eq!(name(&user("u77")), "t77");
    assert!(control.get("ann").await.is_ok(), "a level with shares has a seat");
}

#[tokio::test(start_paused = true)]
async fn flow_control_pages_show_requests() {
    let control = control(1, 10);
    let _first = control.get("ann").await.unwrap();
    let mut second = pin!(control.get("ann"));
    assert!(poll!(&mut second).is_pending());
    let words = |text: String| -> Vec<String> {
        let lines = text.lines().filter(|line| line.starts_with("small"));
        lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    };
    assert_eq!(words(control.dump_levels()), ["small, 1, false, false, 1, 1, 1, 0, 0, 0"]);
    let queues = words(control.dump_queues());
    assert_eq!(queues.len(), 8);
    let waiting = queues.iter().filter(|line| line.split(", ").nth(2) == Some("1"));
    assert_eq!(waiting.count(), 1, "{queues:?}");
    let requests = words(control.dump_requests(true));
    assert_eq!(requests.len(), 2);
    for end in ["ann, get, /api/v1/namespaces/a/pods/p, a, p, v1, pods,"; 2] {
        assert!(requests.iter().all(|line| line.ends_with(end)), "{requests:?}");
    }
    let waiting = requests.iter().filter(|line| line.contains("0001-01-01T00:00:00Z")).count();
    assert_eq!(waiting, 1);
    assert!(words(control.dump_requests(false))[0].starts_with("small, ann, "));
}

/// What an uncontended request costs, for `cargo test --release -- --ignored`.
#[tokio::test]
#[ignore = "a measurement"]
async fn flow_control_cost_of_a_request() {
    let control = FlowControl::new(600, TIMEOUT);
    let (mut levels, mut schemas) = (Vec::new(), Vec::new());
    for object in bootstrap() {
        match object["kind"] == "FlowSchema" {
            true => schemas.push(FlowSchema::read(&object)),
            false => levels.extend(PriorityLevel::read(&object)),
        }
    }
    control.configure(levels, schemas);
    let account = "system:serviceaccount:kube-system:x";
    let groups = ["system:serviceaccounts", "system:serviceaccounts:kube-system"];
    let user = User::authenticated(account.into(), groups.map(str::to_owned).into());
    let Arrival { user: name, request, .. } = arrival(account, Width::ONE);
    let began = std::time::Instant::now();
    const COUNT: u32 = 200_000;
    for _ in 0..COUNT {
        let class = control.classify(&user, &request.digest());
        let (user, request) = (name.clone(), request.clone());
        let arrival = Arrival { user, request, ..arrival(account, Width::ONE) };
        drop(control.admit(&class, arrival).await.unwrap());
    }
    println!("{:?} for each request", began.elapsed() / COUNT);
}
