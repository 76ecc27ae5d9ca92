//! Which endpoints a node uses: those that hints keep near, the local ones, and terminating ones
//! when nothing else serves.

use super::Endpoint;

/// What the hints of an endpoint say about one node or one zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Hint {
    /// It has no hints of this kind.
    #[default]
    None,
    /// It is for others.
    Others,
    /// It is for us.
    Us,
}

/// An endpoint with its hints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HintedEndpoint {
    pub(super) endpoint: Endpoint,
    pub(super) node: Hint,
    pub(super) zone: Hint,
}

/// Sets `for_cluster` and `for_local` of all endpoints of a port, for a service that uses the
/// policies given.
pub(super) fn categorize(endpoints: &mut [HintedEndpoint], cluster: bool, local: bool) {
    let near = topology_mode(endpoints);
    let any_ready = endpoints.iter().any(|h| h.endpoint.ready);
    let local_ready = endpoints.iter().any(|h| h.endpoint.ready && h.endpoint.local);
    for hinted in endpoints {
        let endpoint = &mut hinted.endpoint;
        let last_resort = endpoint.serving && endpoint.terminating;
        endpoint.for_cluster = cluster
            && if any_ready {
                endpoint.ready
                    && match near {
                        TopologyMode::Any => true,
                        TopologyMode::Zone => hinted.zone == Hint::Us,
                        TopologyMode::Node => hinted.node == Hint::Us,
                    }
            } else {
                last_resort
            };
        endpoint.for_local =
            local && endpoint.local && if local_ready { endpoint.ready } else { last_resort };
    }
}

enum TopologyMode {
    Any,
    Zone,
    Node,
}

/// Hints count only when every ready endpoint has them and one of them is for us: traffic is never
/// lost for the sake of nearness.
fn topology_mode(endpoints: &[HintedEndpoint]) -> TopologyMode {
    let counts = |hint: fn(&HintedEndpoint) -> Hint| {
        let mut ready = endpoints.iter().filter(|h| h.endpoint.ready).map(hint);
        let mut ours = false;
        ready.all(|hint| {
            ours |= hint == Hint::Us;
            hint != Hint::None
        }) && ours
    };
    if counts(|h| h.node) {
        TopologyMode::Node
    } else if counts(|h| h.zone) {
        TopologyMode::Zone
    } else {
        TopologyMode::Any
    }
}
