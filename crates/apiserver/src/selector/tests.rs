use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::kinds::lookup;

fn labelled(labels: &Value) -> Value {
    json!({"metadata": {"labels": labels}})
}

#[test]
fn labels_match() {
    let object = labelled(&json!({"app": "web", "tier": "", "n": "5", "x.io/y": "z"}));
    let table = [
        ("", true),
        ("app=web", true),
        ("app==web", true),
        (" app = web ", true),
        ("app=db", false),
        ("app!=db", true),
        ("app!=web", false),
        ("missing!=web", true),
        ("missing=web", false),
        ("app in (web,db)", true),
        ("app in (db)", false),
        ("app notin (db)", true),
        ("app notin (web, db)", false),
        ("missing notin (web)", true),
        ("app", true),
        ("missing", false),
        ("!app", false),
        ("!missing", true),
        ("tier=", true),
        ("tier in ()", true),
        ("tier in (,a)", true),
        ("app=,tier", false),
        ("n>4", true),
        ("n>5", false),
        ("n<6", true),
        ("app>4", false),
        ("x.io/y=z,app=web", true),
        ("x.io/y=z,app=db", false),
        ("in in (in)", false),
    ];
    for (text, wanted) in table {
        let selector = LabelSelector::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(selector.matches(&object), wanted, "{text}");
        assert_eq!(selector.is_empty(), text.is_empty());
    }
    assert!(LabelSelector::parse("!a").unwrap().matches(&json!({})));
}

#[test]
fn labels_refused() {
    let table = [
        ("=a", "found '=', expected: !, identifier, or 'end of string'"),
        ("a=b,", "found '', expected: identifier after ','"),
        ("a=b c", "found 'c', expected: ',' or 'end of string'"),
        ("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt"),
        ("a in b", "unable to parse requirement: found 'b' expected: '('"),
        ("a in (b", "unable to parse requirement: found '', expected: ',' or ')'"),
        ("!", "unable to parse requirement: found '', expected: identifier"),
        ("a=(", "unable to parse requirement: found '(', expected: identifier"),
        (
            "a>b",
            "unable to parse requirement: values[0]: Invalid value: \"b\": for 'Gt', 'Lt' operators, the value must be an integer",
        ),
    ];
    for (text, message) in table {
        let error = LabelSelector::parse(text).expect_err(text);
        assert_eq!((error.code, error.message.as_str()), (400, message), "{text}");
    }
    for text in ["-a=b", "a/b/c", "a=b/c", "a=-b", "a in (b/c)"] {
        assert_eq!(LabelSelector::parse(text).expect_err(text).code, 400);
    }
}

proptest! {
    #[test]
    fn labels_printed_parse_to_the_same(text in prop_oneof![
        "[a-c!=<>(), ]{0,12}",
        "(!?[a-c]|[a-c](=|==|!=)[a-c]?|[a-c] (in|notin) \\([a-c]?(,[a-c])?\\)|[a-c][<>][0-9])(,(!?[d-f]|[d-f]=x)){0,2}",
    ]) {
        if let Ok(selector) = LabelSelector::parse(&text) {
            prop_assert_eq!(LabelSelector::parse(&selector.to_string()).ok(), Some(selector));
        }
    }

    #[test]
    fn fields_never_panic(text in "[a-z.=!,\\\\]{0,20}") {
        let _ = FieldSelector::parse(lookup("", "v1", "pods").expect("served"), &text);
    }
}

fn parse(
    group: &str,
    plural: &str,
    text: &str,
) -> Result<FieldSelector, crate::status::StatusError> {
    FieldSelector::parse(lookup(group, "v1", plural).expect("served"), text)
}

#[test]
fn fields_match() {
    let pod = json!({
        "metadata": {"name": "a", "namespace": "b"},
        "spec": {"nodeName": "n,1", "restartPolicy": "Always"},
        "status": {"phase": "Running", "podIP": "10.0.0.1"},
    });
    let event = json!({"metadata": {"name": "e"}, "involvedObject": {"name": "a", "uid": "u"},
        "source": {"component": "kubelet"}, "reportingComponent": "r", "reason": "x"});
    let shown = json!({"regarding": {"name": "a"}, "reportingController": "r"});
    let node = json!({"metadata": {"name": "n"}});
    let controller = json!({"status": {"replicas": 3}});
    let secret = json!({"type": "Opaque"});
    let table = [
        ("", "pods", "", &pod, true),
        ("", "pods", "metadata.name=a", &pod, true),
        ("", "pods", "metadata.name==a,metadata.namespace=b", &pod, true),
        ("", "pods", "metadata.name!=a", &pod, false),
        ("", "pods", "spec.nodeName=n\\,1", &pod, true),
        ("", "pods", "spec.host=n\\,1", &pod, true),
        ("", "pods", "status.phase!=Failed,status.phase!=Succeeded", &pod, true),
        ("", "pods", "status.podIP=10.0.0.1", &pod, true),
        ("", "pods", "spec.hostNetwork=false", &pod, true),
        ("", "pods", "status.nominatedNodeName=", &pod, true),
        ("", "nodes", "spec.unschedulable=false", &node, true),
        ("", "nodes", "spec.unschedulable=true", &node, false),
        ("", "events", "involvedObject.name=a,involvedObject.uid=u,source=kubelet", &event, true),
        ("events.k8s.io", "events", "regarding.name=a,reportingController=r", &shown, true),
        ("events.k8s.io", "events", "regarding.name=b", &shown, false),
        ("", "replicationcontrollers", "status.replicas=3", &controller, true),
        ("", "secrets", "type=Opaque", &secret, true),
        ("", "configmaps", "metadata.name=c", &secret, false),
    ];
    for (group, plural, text, object, wanted) in table {
        let selector = parse(group, plural, text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(selector.matches(object), wanted, "{plural}: {text}");
    }
    let one = parse("", "pods", "metadata.name=a,spec.nodeName=n").expect("parses");
    assert_eq!(
        (one.name(), one.exact("spec.nodeName"), one.exact("status.phase")),
        (Some("a"), Some("n"), None)
    );
    assert_eq!(parse("", "pods", "metadata.name!=a").expect("parses").name(), None);
}

#[test]
fn fields_refused() {
    let table = [
        ("pods", "spec.foo=1", "field label not supported: spec.foo"),
        (
            "configmaps",
            "data.x=1",
            "\"data.x\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"",
        ),
        (
            "pods",
            "metadata.name",
            "invalid selector: 'metadata.name'; can't understand 'metadata.name'",
        ),
        ("pods", "metadata.name=a\\b", "invalid field selector: invalid escape sequence: \\b"),
        ("pods", "metadata.name=a=b", "invalid field selector: unescaped character in value: 61"),
    ];
    for (plural, text, message) in table {
        let error = parse("", plural, text).expect_err(text);
        assert_eq!((error.code, error.message.as_str()), (400, message), "{text}");
    }
}
