//! Many changes, some syncs of which are given up half-way: in the end the kernel has what a first
//! sync would make.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use longshore_proxy::Family;
use longshore_proxy::apply::{Limits, Variant, cleanup};
use longshore_proxy::bounded_frequency::Reason;
use longshore_proxy::model::ServiceName;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::common::{in_netns, sh};
use crate::proxier::world::{World, proxier};

/// Numbers that look random and are the same in each run (xorshift).
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u8) -> u8 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32).to_le_bytes()[0] % bound
    }
}

/// What the apiserver would list.
#[derive(Default)]
struct Cluster {
    services: BTreeMap<String, Service>,
    slices: BTreeMap<String, EndpointSlice>,
}

impl Cluster {
    /// Applies all objects to a new proxier.
    fn apply(&self, it: &World) {
        it.proxier.update(|tracker| {
            self.services.values().for_each(|it| _ = tracker.apply_service(it));
            self.slices.values().for_each(|it| _ = tracker.apply_slice(it));
            true
        });
    }

    /// Something happens.
    fn step(&mut self, it: &World, dice: &mut Dice) {
        let number = 1 + dice.below(10);
        let name = format!("service-{number}");
        match dice.below(8) {
            0 => {
                self.services.remove(&name);
                let gone = ServiceName::new("default", &name);
                it.proxier.update(|tracker| tracker.delete_service(&gone));
            }
            1 => {
                if let Some(gone) = self.slices.remove(&name) {
                    it.proxier.update(|tracker| tracker.delete_slice(&gone));
                }
            }
            2..=4 => {
                let numbers: Vec<u8> = (1..=5).filter(|_| dice.below(2) == 0).collect();
                let slice = it.slice_object(&name, &numbers, json!({}));
                it.proxier.update(|tracker| tracker.apply_slice(&slice));
                self.slices.insert(name, slice);
            }
            kind => {
                let spec = spec(it, kind * 2 + dice.below(2));
                let service = it.service_object(&name, number, spec);
                it.proxier.update(|tracker| tracker.apply_service(&service));
                self.services.insert(name, service);
            }
        }
    }
}

/// A kind of service, 10 to 15.
fn spec(it: &World, kind: u8) -> Value {
    match kind {
        10 => json!({"type": "ClusterIP", "ports": [{"name": "p", "port": 80}]}),
        11 => json!({"type": "ExternalName"}),
        12 => json!({"sessionAffinity": "ClientIP"}),
        13 => json!({"externalTrafficPolicy": "Local", "internalTrafficPolicy": "Local"}),
        14 => json!({"externalIPs": [it.ip(7, 7)]}),
        _ => json!({
            "type": "LoadBalancer",
            "loadBalancerSourceRanges": ["10.9.0.0/16", "fd00:9::/32"],
        }),
    }
}

fn churn(variant: Variant) {
    in_netns(async || {
        for family in Family::ALL {
            let it = World::new(variant, family).await;
            let mut cluster = Cluster::default();
            let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
            let (mut partial, mut given_up) = (0, 0);
            for round in 0..40_u8 {
                for _ in 0..=dice.below(4) {
                    cluster.step(&it, &mut dice);
                }
                let sync = it.proxier.sync(Reason::Change);
                // As a process that is killed at any point, but that it lives on.
                let patience = match round % 8 {
                    7 => Duration::from_millis(u64::from(round / 8 * dice.below(4))),
                    _ => Duration::from_secs(60),
                };
                match timeout(patience, sync).await {
                    Ok(synced) => partial += usize::from(!synced.unwrap().full),
                    Err(_) => {
                        given_up += 1;
                        // What the kernel had begun for the command that was ended.
                        sleep(Duration::from_millis(20)).await;
                    }
                }
            }
            it.proxier.sync(Reason::Change).await.unwrap();
            assert!(partial >= 25 && given_up >= 1, "{partial} partial, {given_up} given up");

            let rules = it.rules().await;
            assert!(rules.len() > 60, "{rules:?}");
            let fresh = World { proxier: proxier(&it.backend, family), ..it };
            cluster.apply(&fresh);
            let first = fresh.proxier.sync(Reason::Change).await.unwrap();
            assert_eq!((first.filter.written, first.nat.written), (0, 0), "{family}");
            assert_eq!(fresh.rules().await, rules, "no chain was left either");
            cleanup(Limits::default()).await.unwrap();
        }
    });
}

#[test]
fn churn_ends_in_the_state_of_a_first_sync_nft() {
    churn(Variant::Nft);
}

#[test]
fn churn_ends_in_the_state_of_a_first_sync_legacy() {
    churn(Variant::Legacy);
}

#[test]
fn tracker_updates_do_not_wait_for_a_sync() {
    in_netns(async || {
        let it = World::new(Variant::Legacy, Family::V4).await;
        it.service("one", 1, json!({}));
        it.endpoints("one", &[1], json!({}));
        let mut lock = std::process::Command::new("flock")
            .args(["--no-fork", "/run/xtables.lock", "sleep", "600"])
            .spawn()
            .unwrap();
        while sh("cat /proc/locks").lines().all(|it| !it.contains(&format!(" {} ", lock.id()))) {}
        let is_synced = std::cell::Cell::new(false);
        let events = async {
            sleep(Duration::from_millis(100)).await;
            assert!(it.endpoints("one", &[1, 2], json!({})));
            sleep(Duration::from_millis(400)).await;
            assert!(!is_synced.get(), "the lock is waited for");
            lock.kill().unwrap();
            lock.wait().unwrap();
        };
        let sync = async {
            let synced = it.proxier.sync(Reason::Change).await;
            is_synced.set(true);
            synced
        };
        let (first, ()) = tokio::join!(sync, events);
        // What came meanwhile is for the next.
        let (first, second) = (first.unwrap(), it.proxier.sync(Reason::Change).await.unwrap());
        assert!(first.full && !second.full);
        assert_eq!((first.endpoints, second.endpoints), (1, 1));
        assert!(it.rules().await.iter().any(|it| it.contains("10.1.0.2:8080")));
    });
}

#[test]
fn large_clusters_go_without_comments_and_back() {
    in_netns(async || {
        let it = World::new(Variant::Nft, Family::V4).await;
        let pods: Vec<u8> = (1..=250).collect();
        for number in 1..=4 {
            it.service(&format!("service-{number}"), number, json!({}));
            it.endpoints(&format!("service-{number}"), &pods, json!({}));
        }
        let comments = async || {
            let rules = it.rules().await;
            rules.iter().filter(|it| it.contains("KUBE-SEP-") && it.contains("comment")).count()
        };
        it.proxier.sync(Reason::Change).await.unwrap();
        assert!(comments().await > 2000);
        it.service("service-5", 5, json!({}));
        it.endpoints("service-5", &[1], json!({}));
        let large = it.proxier.sync(Reason::Change).await.unwrap();
        assert!(large.full, "all rules are other ones");
        assert_eq!(comments().await, 0);
        // What is left over is removed when there is time.
        it.endpoints("service-5", &[2], json!({}));
        let chains = async || it.rules().await.iter().filter(|it| it.contains(":KUBE-SEP")).count();
        assert!(!it.proxier.sync(Reason::Change).await.unwrap().full);
        assert_eq!(chains().await, 1002);
        assert!(!it.proxier.sync(Reason::Period).await.unwrap().full);
        assert_eq!(chains().await, 1001);
        it.endpoints("service-5", &[], json!({}));
        assert!(it.proxier.sync(Reason::Change).await.unwrap().full);
        assert!(comments().await > 2000);
        assert_eq!(chains().await, 1000);
    });
}
