//! A host's network: a namespace held by a file of its directory, joined to the machine by a veth
//! pair, so that a test (or a person's kubectl) outside reaches node, apiserver and pods inside.
use std::fs::File;

use crate::command::{run, run_split};
use crate::error::{AtPath, Result};
use crate::slot::Names;
use std::process::Command;

/// The bridge that the CNI plugin makes; the namespace is its own, so it needs no unique name.
pub(crate) const BRIDGE: &str = "cni0";

/// Makes the namespace and its link.
pub(crate) fn create(names: Names) -> Result<()> {
    let netns = names.netns();
    File::create(&netns).at(&netns)?;
    // Not `ip netns add`: that one leaves a mount on /run/netns behind for good.
    run_split("unshare", &format!("--net={} true", netns.display()))?;
    let (link, machine, node) = (names.link(), names.machine_ip(), names.node_ip());
    run_split(
        "ip",
        &format!("link add {link} type veth peer name eth0 netns {}", netns.display()),
    )?;
    inside(
        names,
        &format!(
            "ip link set lo up
             ip addr add {node}/30 dev eth0
             ip link set eth0 up
             ip route add default via {machine}
             echo 1 >/proc/sys/net/ipv4/ip_forward"
        ),
    )?;
    run_split("ip", &format!("addr add {machine}/30 dev {link}"))?;
    run_split("ip", &format!("link set {link} up"))?;
    run_split("ip", &format!("route add {} via {node}", names.pod_cidr()))?;
    Ok(())
}

/// Joins two namespaces by a link of their own: nodes and pods of both reach each other. It goes with
/// either of them.
pub(crate) fn join(one: Names, other: Names) -> Result<()> {
    let link = |to: Names| format!("to-{}", to.name());
    let (here, there) = (link(other), link(one));
    let netns = other.netns();
    inside(
        one,
        &format!("ip link add {here} type veth peer name {there} netns {}", netns.display()),
    )?;
    for (from, to, link) in [(one, other, here), (other, one, there)] {
        let (own, node, pods) = (from.node_ip(), to.node_ip(), to.pod_cidr());
        inside(
            from,
            &format!(
                "ip link set {link} up
                 ip route add {node}/32 dev {link} src {own}
                 ip route add {pods} via {node} dev {link} src {own} onlink"
            ),
        )?;
    }
    Ok(())
}

/// Runs a shell script in the namespace.
pub(crate) fn inside(names: Names, script: &str) -> Result<String> {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", names.netns().display())).args(["sh", "-ec", script]);
    run(command)
}

/// Removes the link at once; the namespace follows when its last process and mount are gone.
pub(crate) fn remove_link(names: Names) {
    if link_exists(names) {
        // It goes with a dying namespace too, perhaps just now.
        let _ = run_split("ip", &format!("link del {}", names.link()));
    }
}

pub(crate) fn link_exists(names: Names) -> bool {
    std::path::Path::new("/sys/class/net").join(names.link()).exists()
}
