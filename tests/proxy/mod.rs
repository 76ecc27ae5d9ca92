//! kube-proxy as its users run it: a real apiserver, `longshore proxy` on a host of its own, real
//! packets.

use crate::common;
mod facade;
mod world;

use std::net::{IpAddr, SocketAddr};

use common::TIMEOUT;
use longshore_testkit::{Host, KubeProxy, NodeOptions, kube_proxy_configuration, wait_until};
use serde_json::json;
use world::{Neighbour, World, cluster_ip, listen, node_port, pod};

#[tokio::test(flavor = "multi_thread")]
async fn proxy_rules_follow_services_and_survive_the_proxy() {
    let mut it = World::new().await;
    it.create_node(json!({})).await;
    let web = it.service("web", json!({"type": "NodePort"})).await;
    let node_port = node_port(&web);
    let (web, node) = (cluster_ip(&web), it.host.node_ip().into());
    it.endpoints("web", &[1], None).await;
    it.start_proxy(json!({}));
    it.until_served(web, 80, 1).await;
    it.until_served(node, node_port, 1).await;
    let event = it.until_event("Starting").await;
    assert_eq!(event.involved_object.name, Some(it.host.name()));

    // What changes is followed, and what has no endpoints refuses.
    let other = cluster_ip(&it.service("other", json!({})).await);
    it.until_refused(other, 80).await;
    it.endpoints("other", &[3], None).await;
    it.until_served(other, 80, 3).await;
    it.endpoints("web", &[2], None).await;
    it.until_served(web, 80, 2).await;
    let page = it.metrics().unwrap();
    let family = [("ip_family", "IPv4")];
    for name in [
        "kubeproxy_sync_partial_proxy_rules_duration_seconds_count",
        "kubeproxy_network_programming_duration_seconds_count",
        "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
    ] {
        assert!(page.sum(name, &family).is_some_and(|value| value > 0.0), "{name}");
    }
    // What the panels of the kubernetes-mixin ask of the job `kube-proxy`.
    for (name, labels) in [
        ("kubeproxy_sync_proxy_rules_duration_seconds_bucket", &[][..]),
        ("kubeproxy_sync_proxy_rules_duration_seconds_count", &[]),
        ("kubeproxy_network_programming_duration_seconds_bucket", &[]),
        ("rest_client_requests_total", &[("code", "200")]),
        ("rest_client_request_duration_seconds_bucket", &[("verb", "GET")]),
        ("rest_client_request_duration_seconds_bucket", &[("verb", "POST")]),
        ("kubernetes_feature_enabled", &[("name", "NFTablesProxyMode")]),
    ] {
        assert!(page.samples(name, labels).next().is_some(), "{name} {labels:?}");
    }

    // Killed, it leaves its rules; started again, it changes nothing.
    let before = it.rules();
    it.proxy().daemon().kill().unwrap();
    assert_eq!(it.request(web, 80), Ok(pod(2)));
    let host = &it.host;
    it.proxy.as_mut().unwrap().restart(host).unwrap();
    let page = it.until_synced(1.0).await;
    let written = page.sum("kubeproxy_sync_proxy_rules_iptables_last", &family);
    assert_eq!(written, Some(0.0), "nothing is written");
    assert_eq!(it.rules(), before);

    // It leaves them at a stop, too; what was removed meanwhile is cleaned up at the next start.
    assert!(it.proxy().daemon().terminate(TIMEOUT).unwrap().success());
    assert_eq!(it.rules(), before);
    it.delete_service("web").await;
    assert_eq!(it.request(web, 80), Ok(pod(2)));
    let host = &it.host;
    it.proxy.as_mut().unwrap().restart(host).unwrap();
    it.until_synced(1.0).await;
    assert!(it.request(web, 80).is_err());
    assert_eq!(it.request(other, 80), Ok(pod(3)));

    it.proxy().daemon().kill().unwrap();
    assert!(KubeProxy::clean_up(&it.host).unwrap());
    // The guard of loopback addresses is the kubelet's too.
    let left = it.rules();
    assert!(left.iter().all(|rule| rule.contains("KUBE-FIREWALL")), "{left:?}");
    it.clean_up();
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_restores_flushed_rules() {
    let mut it = World::new().await;
    it.create_node(json!({})).await;
    let web = cluster_ip(&it.service("web", json!({})).await);
    it.endpoints("web", &[1], None).await;
    // No period brings them back while this test waits.
    it.start_proxy(json!({"iptables": {"syncPeriod": "1h"}}));
    it.until_served(web, 80, 1).await;
    let before = it.rules();
    // As a firewall does that is loaded again. The proxy may bring chains back meanwhile, which makes the
    // removal fail.
    for table in ["nat", "filter", "mangle"] {
        it.sh(&format!("iptables -t {table} -F; iptables -t {table} -X || true"));
    }
    it.until_served(web, 80, 1).await;
    wait_until(TIMEOUT, "all rules", async || {
        if it.rules() == before { Ok(()) } else { Err(format!("{:?}", it.rules())) }
    })
    .await
    .unwrap();
    it.clean_up();
}

/// Also CVE-2019-11248: no profiler on the open ports.
#[tokio::test(flavor = "multi_thread")]
async fn proxy_health_and_metrics_ports() {
    let mut it = World::new().await;
    it.create_node(json!({})).await;
    let name = it.host.name();
    let fields = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 32123});
    it.service("local", fields).await;
    it.endpoints("local", &[1, 2], Some(&name)).await;
    it.start_proxy(json!({"enableProfiling": true}));

    let body = it.until_status(10256, "/healthz", 200).await;
    let report: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!((&report["healthy"], &report["nodeEligible"]), (&json!(true), &json!(true)));
    let body = it.until_status(32123, "/", 200).await;
    assert!(body.contains("\"localEndpoints\": 2"), "{body}");
    let (_, head, _) = it.get(32123, "/any/path").unwrap();
    assert!(head.contains("x-load-balancing-endpoint-weight: 2"), "{head}");
    it.endpoints("local", &[1, 2], Some("elsewhere")).await;
    it.until_status(32123, "/", 503).await;

    // A node that goes takes no new traffic, and the proxy works on.
    let taint = json!({"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"});
    it.patch_node(json!({"spec": {"taints": [taint]}})).await;
    it.until_status(10256, "/healthz", 503).await;
    it.until_status(10256, "/livez", 200).await;
    it.patch_node(json!({"spec": {"taints": null}})).await;
    it.until_status(10256, "/healthz", 200).await;

    let body = |path| it.get(10249, path).unwrap();
    assert_eq!(body("/proxyMode").2, "iptables");
    assert_eq!(body("/healthz").2, "ok");
    let configz: serde_json::Value = serde_json::from_str(&body("/configz").2).unwrap();
    assert_eq!(configz["kubeproxy.config.k8s.io"]["kind"], "KubeProxyConfiguration");
    assert!(body("/metrics/slis").2.contains("kubernetes_healthcheck{"));
    let flagz = body("/flagz").2;
    assert!(flagz.starts_with("\nkube-proxy flagz\n"), "{flagz}");
    assert!(flagz.contains(&format!("\nhostname-override={name}\n")), "{flagz}");
    assert!(body("/statusz").2.contains("\nPaths: /configz /flagz /healthz "));
    for (port, paths) in [
        (10249, &["/debug/flags/v", "/", "/pods", "/metrics/x"][..]),
        (10256, &["/debug/pprof/", "/metrics", "/"]),
    ] {
        for path in paths {
            assert_eq!(it.get(port, path).unwrap().0, 404, "{port} {path}");
        }
    }
    assert_eq!(body("/debug/pprof/cmdline").0, 200);
    let page = it.metrics().unwrap();
    for name in [
        "process_resident_memory_bytes",
        "process_cpu_seconds_total",
        "go_goroutines",
        "kubernetes_build_info",
        "kubeproxy_sync_proxy_rules_endpoint_changes_total",
        "kubeproxy_sync_proxy_rules_service_changes_total",
        "kubeproxy_sync_proxy_rules_iptables_total",
        "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
        "kubeproxy_proxy_livez_total",
    ] {
        assert!(page.sum(name, &[]).is_some_and(|value| value > 0.0), "{name}");
    }
    let refused = page.sum("kubeproxy_proxy_healthz_total", &[("code", "503")]);
    assert!(refused.is_some_and(|count| count >= 1.0), "{refused:?}");

    // A service that is gone closes its port.
    it.delete_service("local").await;
    wait_until(TIMEOUT, "a closed port", async || match it.get(32123, "/") {
        Err(error) if error.contains("refused") => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await
    .unwrap();
    it.clean_up();
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_userspace_mode_and_mode_changes() {
    let mut it = World::new().await;
    it.create_node(json!({})).await;
    let web = cluster_ip(&it.service("web", json!({})).await);
    it.endpoints("web", &[1], None).await;
    it.start_proxy(json!({"mode": "iptables"}));
    it.until_served(web, 80, 1).await;
    it.proxy().daemon().terminate(TIMEOUT).unwrap();

    it.start_proxy(json!({"mode": "userspace"}));
    it.endpoints("web", &[2], None).await;
    it.until_served(web, 80, 2).await;
    let rules = it.rules().join("\n");
    assert!(rules.contains("KUBE-PORTALS-HOST") && !rules.contains("KUBE-SVC-"), "{rules}");
    assert_eq!(it.get(10249, "/proxyMode").unwrap().2, "userspace");
    it.proxy().daemon().terminate(TIMEOUT).unwrap();

    it.start_proxy(json!({"mode": "iptables"}));
    it.until_served(web, 80, 2).await;
    assert!(!it.rules().join("\n").contains("KUBE-PORTALS"));
    it.clean_up();
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_waits_for_and_follows_pod_cidrs() {
    let mut it = World::new().await;
    it.create_node(json!({})).await;
    let web = cluster_ip(&it.service("web", json!({})).await);
    it.endpoints("web", &[1], None).await;
    it.start_proxy(json!({"detectLocalMode": "NodeCIDR"}));
    wait_until(TIMEOUT, "the proxy to wait", async || {
        let log = it.proxy.as_mut().unwrap().daemon().log();
        if log.contains("waiting for the node's pod CIDRs") { Ok(()) } else { Err(log) }
    })
    .await
    .unwrap();
    assert!(!it.rules().join("\n").contains("KUBE-SVC-"));
    it.patch_node(json!({"spec": {"podCIDR": "10.77.1.0/24", "podCIDRs": ["10.77.1.0/24"]}})).await;
    it.until_served(web, 80, 1).await;
    let local = |rules: Vec<String>| rules.iter().any(|rule| rule.contains("! -s 10.77.1.0/24"));
    assert!(local(it.rules()), "{:?}", it.rules());
    it.clean_up();
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_bind_failure_is_fatal_if_configured() {
    let mut it = World::new().await;
    it.create_node(json!({})).await;
    let taken = world::on(&it.host, || std::net::TcpListener::bind("0.0.0.0:10256").unwrap());
    it.start_proxy(json!({"bindAddressHardFail": true}));
    let status = it.proxy().daemon().wait(TIMEOUT).unwrap();
    assert!(!status.success());
    let log = it.proxy().daemon().log();
    assert!(log.contains("healthz server at 0.0.0.0:10256: Address already in use"), "{log}");
    it.until_event("FailedToStartProxierHealthcheck").await;
    // Else it is tried again.
    it.start_proxy(json!({}));
    it.until_synced(1.0).await;
    drop(taken);
    it.until_status(10256, "/livez", 200).await;
    it.clean_up();
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_and_kubelet_in_one_process() {
    let it = World::on(Host::start().expect("a host")).await;
    let options =
        NodeOptions { proxy: Some(kube_proxy_configuration(&it.host)), ..NodeOptions::default() };
    let (kubeconfig, ca) = (it.apiserver.node_kubeconfig(), it.apiserver.client_ca());
    let mut node = longshore_testkit::Node::start(&it.host, &kubeconfig, &ca, options).unwrap();
    let web = cluster_ip(&it.service("web", json!({})).await);
    it.endpoints("web", &[1], None).await;
    it.until_served(web, 80, 1).await;
    it.until_event("Starting").await;
    it.until_status(10256, "/healthz", 200).await;
    assert_eq!(it.get(10249, "/proxyMode").unwrap().2, "iptables");
    assert!(node.daemon().terminate(TIMEOUT).unwrap().success());
    assert_eq!(it.request(web, 80), Ok(pod(1)), "rules stay");
    drop(node);
    it.clean_up();
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_falls_back_to_endpoints() {
    let mut it = World::new().await;
    it.create_node(json!({})).await;
    let web = cluster_ip(&it.service("web", json!({})).await);
    it.old_endpoints("web", &[1]).await;
    // It has no endpoint slices, and lets anybody in: the proxy shows nothing.
    let facade = facade::Facade::start(&it.host, it.client.clone());
    it.start_proxy_at(&format!("--master={}", facade.url()));
    it.until_served(web, 80, 1).await;
    it.old_endpoints("web", &[2]).await;
    it.until_served(web, 80, 2).await;
    let agents = facade.agents();
    assert!(agents.iter().all(|agent| agent.starts_with("kube-proxy/v1.36")), "{agents:?}");
    let page = it.metrics().unwrap();
    let requests = page.sum("rest_client_requests_total", &[("method", "GET")]);
    assert!(requests.is_some_and(|count| count > 2.0), "{requests:?}");
    it.clean_up();
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_packet_counters_are_metrics() {
    let mut it = World::new().await;
    it.create_node(json!({})).await;
    // What upstream's nftables mode leaves would lead packets too.
    it.sh("nft add table ip kube-proxy");
    let web = it.service("web", json!({"type": "NodePort"})).await;
    let node_port = node_port(&web);
    it.endpoints("web", &[1], None).await;
    it.start_proxy(json!({}));
    it.until_served("127.0.0.1".parse().unwrap(), node_port, 1).await;
    let page = it.metrics().unwrap();
    let accepted = "kubeproxy_iptables_localhost_nodeports_accepted_packets_total";
    assert!(page.sum(accepted, &[]).is_some_and(|packets| packets >= 1.0));
    let dropped = "kubeproxy_iptables_ct_state_invalid_dropped_packets_total";
    assert_eq!(page.sum(dropped, &[]), Some(0.0));
    assert!(!it.sh("nft list tables").contains("kube-proxy"));
    it.clean_up();
}

/// CVE-2020-8558: loopback addresses are routed only where node ports are served at them, and then
/// they are kept from neighbours.
#[tokio::test(flavor = "multi_thread")]
async fn proxy_route_localnet_is_protected() {
    let mut it = World::new().await;
    it.create_node(json!({})).await;
    let loopback = IpAddr::from([127, 0, 0, 1]);
    listen(&it.host, SocketAddr::new(loopback, 8099), INTRUDER.to_owned());
    let neighbour = Neighbour::join(&it.host);
    let routed = "cat /proc/sys/net/ipv4/conf/all/route_localnet";
    assert_eq!(it.sh(routed).trim(), "0");
    it.start_proxy(json!({"iptables": {"localhostNodePorts": false}}));
    it.until_synced(1.0).await;
    assert_eq!(it.sh(routed).trim(), "0");
    it.proxy().daemon().terminate(TIMEOUT).unwrap();
    neighbour.receive(loopback, 8099).unwrap_err();

    it.start_proxy(json!({}));
    it.until_synced(1.0).await;
    assert_eq!(it.sh(routed).trim(), "1");
    neighbour.lead_loopback();
    neighbour.receive(loopback, 8099).unwrap_err();
    // Nothing but the guard stands in the way.
    it.sh("iptables -F KUBE-FIREWALL");
    assert_eq!(neighbour.receive(loopback, 8099).as_deref(), Ok(INTRUDER));
    drop(neighbour);
    it.clean_up();
}

/// What a program of the host says that is no endpoint of anything.
const INTRUDER: &str = "a program of the host";

#[tokio::test(flavor = "multi_thread")]
async fn proxy_iptables_mode_traffic_is_not_taken_by_host_programs() {
    no_program_of_the_host_takes_a_services_traffic("iptables").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_userspace_mode_traffic_is_not_taken_by_host_programs() {
    no_program_of_the_host_takes_a_services_traffic("userspace").await;
}

/// GO-2023-2159 (CVE-2021-25736): traffic for the node port or the load balancer of a service
/// without endpoints reached a process of the host that listens on the same port.
async fn no_program_of_the_host_takes_a_services_traffic(mode: &str) {
    let mut it = World::new().await;
    it.create_node(json!({})).await;
    let (node, balancer) = (IpAddr::from(it.host.node_ip()), IpAddr::from([203, 0, 113, 9]));
    let neighbour = Neighbour::join(&it.host);
    let ported = node_port(&it.service("ported", json!({"type": "NodePort"})).await);
    let balanced = node_port(&it.service("balanced", json!({"type": "LoadBalancer"})).await);
    it.set_ingress("balanced", balancer).await;
    // As long as the cloud has given it no address.
    let waiting = node_port(&it.service("waiting", json!({"type": "LoadBalancer"})).await);
    let fields = json!({"type": "NodePort", "externalTrafficPolicy": "Local"});
    let local = node_port(&it.service("local", fields).await);
    it.endpoints("local", &[3], Some("elsewhere")).await;

    // The load balancer's address is the host's too, so nothing but a rule keeps packets away.
    it.sh(&format!("ip addr add {balancer}/32 dev lo"));
    let fronts = [(node, ported), (node, balanced), (node, waiting), (node, local), (balancer, 80)];
    for port in [ported, balanced, waiting, local, 80] {
        listen(&it.host, SocketAddr::from(([0, 0, 0, 0], port)), INTRUDER.to_owned());
    }
    for (ip, port) in fronts {
        let received = neighbour.receive(ip, port);
        assert_eq!(
            received.as_deref(),
            Ok(INTRUDER),
            "without rules the test has something to show"
        );
    }

    it.start_proxy(json!({"mode": mode}));
    // What is served elsewhere alone may be served from there, as in userspace mode.
    let elsewhere = pod(3).to_string();
    let is_refused = |port: u16, received: Result<String, String>| match received {
        Ok(text) if text.is_empty() || port == local && text == elsewhere => Ok(()),
        Ok(text) => Err(text),
        Err(_) => Ok(()),
    };
    let refused_for_both = |ip: IpAddr, port: u16| {
        is_refused(port, neighbour.receive(ip, port))
            .map_err(|taken| format!("a neighbour received {taken:?}"))?;
        match it.request(ip, port) {
            Err(received) if received != INTRUDER => Ok(()),
            _ if port == local => Ok(()),
            taken => Err(format!("the host itself received {taken:?}")),
        }
    };
    // The rules of neighbours and of the host itself are not made in one step.
    let until_refused = async || {
        for (ip, port) in fronts {
            wait_until(TIMEOUT, &format!("no server at {ip}:{port}"), async || {
                refused_for_both(ip, port)
            })
            .await
            .unwrap();
        }
        for _ in 0..3 {
            for (ip, port) in fronts {
                assert_eq!(refused_for_both(ip, port), Ok(()), "{ip}:{port}");
            }
        }
    };
    until_refused().await;
    // With an endpoint the same addresses serve, and without it they are refused again.
    it.endpoints("balanced", &[2], None).await;
    for (ip, port) in [(node, balanced), (balancer, 80)] {
        wait_until(TIMEOUT, &format!("pod 2 at {ip}:{port}"), async || {
            match neighbour.receive(ip, port) {
                Ok(text) if text == pod(2).to_string() => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await
        .unwrap();
    }
    it.endpoints("balanced", &[], None).await;
    until_refused().await;
    drop(neighbour);
    it.clean_up();
}
