//! The QoS class of a pod, from the requests and limits of its containers.

use serde_json::Value;

use crate::schema::quantity::Quantity;
use crate::schema::value::{entries, items, text};

/// `Guaranteed`, `Burstable` or `BestEffort`.
pub(crate) fn class(spec: &Value) -> &'static str {
    // requests and limits of the pod as a whole, where it has them, say it all
    let whole = &spec["resources"];
    if entries(&whole["requests"]).chain(entries(&whole["limits"])).any(counts) {
        return of([whole].into_iter());
    }
    of(["containers", "initContainers"]
        .iter()
        .flat_map(|list| items(&spec[*list]))
        .map(|c| &c["resources"]))
}

fn of<'a>(resources: impl Iterator<Item = &'a Value>) -> &'static str {
    let (mut any, mut guaranteed) = (false, true);
    for resources in resources {
        let (requests, limits) = (&resources["requests"], &resources["limits"]);
        any |= entries(requests).chain(entries(limits)).any(counts);
        guaranteed &= ["cpu", "memory"].iter().all(|name| {
            let limit = amount(&limits[*name]);
            limit > 0 && (requests[*name].is_null() || amount(&requests[*name]) == limit)
        });
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

fn counts((name, quantity): (&String, &Value)) -> bool {
    matches!(name.as_str(), "cpu" | "memory") && amount(quantity) > 0
}

fn amount(quantity: &Value) -> i128 {
    Quantity::parse(text(quantity)).map_or(0, Quantity::amount)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use serde_json::json;

    use super::class;

    #[test]
    fn classes() {
        let full = json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1000m", "memory": "1Gi"}});
        let limits = json!({"limits": {"cpu": "1", "memory": "1Gi"}});
        let some = json!({"requests": {"cpu": "1m"}});
        let table = [
            (json!({"containers": [{}]}), "BestEffort"),
            (json!({"containers": [{"resources": {"requests": {"cpu": "0"}}}]}), "BestEffort"),
            (
                json!({"containers": [{"resources": {"requests": {"ephemeral-storage": "1Gi"}}}]}),
                "BestEffort",
            ),
            (json!({"containers": [{"resources": full}]}), "Guaranteed"),
            (json!({"containers": [{"resources": limits}]}), "Guaranteed"),
            (json!({"containers": [{"resources": full}, {}]}), "Burstable"),
            (
                json!({"containers": [{"resources": full}], "initContainers": [{"resources": some}]}),
                "Burstable",
            ),
            (json!({"containers": [{"resources": some}]}), "Burstable"),
            (json!({"resources": full, "containers": [{"resources": some}]}), "Guaranteed"),
        ];
        for (spec, wanted) in table {
            assert_eq!(class(&spec), wanted, "{spec}");
        }
    }
}
