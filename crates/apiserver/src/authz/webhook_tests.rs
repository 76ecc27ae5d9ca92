//! Chains of authorizers with webhooks, which answer on loopback.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::remote::testing::serve_json;

/// A webhook that answers reviews with a status, and the number of its calls.
async fn webhook(
    status: impl Fn(&Value) -> (u16, Value) + Send + Sync + 'static,
) -> (AuthorizerConfig, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = calls.clone();
    let kubeconfig = serve_json(move |review| {
        count.fetch_add(1, Ordering::SeqCst);
        let (code, status) = status(&review["spec"]);
        let answer = json!({"apiVersion": review["apiVersion"], "kind": "SubjectAccessReview",
            "status": status});
        (code, answer)
    })
    .await;
    let config = WebhookConfig {
        name: "w".to_owned(),
        authorized_ttl: Duration::from_secs(60),
        unauthorized_ttl: Duration::from_secs(60),
        timeout: Duration::from_secs(5),
        version: "v1".to_owned(),
        denies_on_failure: false,
        connection: Connection::Kubeconfig(kubeconfig),
        conditions: Vec::new(),
    };
    (AuthorizerConfig::Webhook(config), calls)
}

fn change(config: AuthorizerConfig, with: impl FnOnce(&mut WebhookConfig)) -> AuthorizerConfig {
    let AuthorizerConfig::Webhook(mut config) = config else { return config };
    with(&mut config);
    AuthorizerConfig::Webhook(config)
}

fn authorizer(authorizers: Vec<AuthorizerConfig>) -> Authorizer {
    let config = AuthorizationConfig { authorizers, ..AuthorizationConfig::default() };
    Authorizer::new(config, &FeatureGates::default()).unwrap()
}

fn user(name: &str) -> User {
    User::authenticated(name.to_owned(), vec!["dev".to_owned()])
}

async fn decide(authorizer: &Authorizer, user: &User, name: &str) -> Decision {
    let target = ResourceTarget {
        resource: "pods",
        version: "v1",
        namespace: "n",
        name,
        ..ResourceTarget::default()
    };
    authorizer.ask(None, &Access { user, verb: "get", target: Target::Resource(target) }).await
}

#[tokio::test]
async fn authorization_webhook_is_asked_in_its_turn_and_cached() {
    let (hook, calls) = webhook(|spec| {
        assert_eq!(spec["groups"], json!(["dev", "system:authenticated"]));
        let expected = json!({"verb": "get", "version": "v1", "resource": "pods",
            "namespace": "n", "name": spec["resourceAttributes"]["name"]});
        assert_eq!(spec["resourceAttributes"], expected);
        let status = match spec["user"].as_str() {
            Some("ann") => json!({"allowed": true, "reason": "known"}),
            Some("eve") => json!({"allowed": false, "denied": true, "reason": "banned"}),
            Some("odd") => json!({"allowed": true, "denied": true}),
            _ => json!({"allowed": false, "reason": "who is it"}),
        };
        (200, status)
    })
    .await;
    let chain = |after| authorizer(vec![hook.clone(), AuthorizerConfig::Local(after)]);
    let own = chain(Mode::AlwaysDeny);
    for _ in 0..2 {
        let found = decide(&own, &user("ann"), "a").await;
        assert_eq!(found, Decision::Allow("known".to_owned()));
        let found = decide(&own, &user("bob"), "a").await;
        assert_eq!(found, Decision::Deny("who is it\nEverything is forbidden.".to_owned()));
        let found = decide(&own, &user("eve"), "a").await;
        assert_eq!(found, Decision::Veto("banned".to_owned()));
    }
    assert_eq!(calls.load(Ordering::SeqCst), 3);
    decide(&own, &user("ann"), "b").await;
    assert_eq!(calls.load(Ordering::SeqCst), 4, "of another object");
    let open = chain(Mode::AlwaysAllow);
    assert!(decide(&open, &user("bob"), "a").await.is_allowed(), "the webhook has no opinion");
    assert_eq!(decide(&open, &user("eve"), "a").await, Decision::Veto("banned".to_owned()));
    let both = decide(&open, &user("odd"), "a").await;
    assert!(matches!(both, Decision::Failed { is_veto: true, .. }), "{both:?}");
    let first = authorizer(vec![AuthorizerConfig::Local(Mode::AlwaysAllow), hook.clone()]);
    assert!(decide(&first, &user("eve"), "a").await.is_allowed(), "it is not asked");
    let page = own.metrics();
    for line in [
        "apiserver_authorization_decisions_total{type=\"Webhook\",name=\"w\",decision=\"denied\"} 2",
        "apiserver_authorization_webhook_evaluations_total{name=\"w\",result=\"success\"} 4",
    ] {
        assert!(page.contains(line), "{page}");
    }
    let admin = User::authenticated("eve".to_owned(), vec![MASTERS.to_owned()]);
    assert!(decide(&own, &admin, "a").await.is_allowed(), "masters pass by it");
}

#[tokio::test]
async fn authorization_webhook_failure_denies_or_has_no_opinion() {
    let (hook, calls) = webhook(|_| (403, json!({"allowed": true}))).await;
    let open = |hook| authorizer(vec![hook, AuthorizerConfig::Local(Mode::AlwaysAllow)]);
    assert!(decide(&open(hook.clone()), &user("ann"), "a").await.is_allowed());
    let closed = authorizer(vec![hook.clone()]);
    let found = decide(&closed, &user("ann"), "a").await;
    let Decision::Failed { is_veto: false, error, .. } = &found else { panic!("{found:?}") };
    assert!(error.contains("403"), "{error}");
    let strict = change(hook, |config| config.denies_on_failure = true);
    let found = decide(&open(strict), &user("ann"), "a").await;
    assert!(matches!(found, Decision::Failed { is_veto: true, .. }), "{found:?}");
    assert_eq!(calls.load(Ordering::SeqCst), 3, "failures are not cached");
    let (hook, _) = webhook(|_| (200, json!({"allowed": "yes"}))).await;
    let found = decide(&authorizer(vec![hook]), &user("ann"), "a").await;
    assert!(matches!(found, Decision::Failed { .. }), "{found:?}");
}

#[tokio::test]
async fn authorization_webhook_conditions_say_what_it_is_asked_about() {
    let (hook, calls) = webhook(|_| (200, json!({"denied": true}))).await;
    let with = |condition: &str, strict: bool| {
        let hook = change(hook.clone(), |config| {
            config.conditions = vec![condition.to_owned()];
            config.denies_on_failure = strict;
        });
        authorizer(vec![hook, AuthorizerConfig::Local(Mode::AlwaysAllow)])
    };
    let ann = user("ann");
    let skipped = with("request.resourceAttributes.namespace == 'kube-system'", true);
    assert!(decide(&skipped, &ann, "a").await.is_allowed());
    let fails = "request.nonResourceAttributes.path == '/x'";
    assert!(decide(&with(fails, false), &ann, "a").await.is_allowed());
    assert!(!decide(&with(fails, true), &ann, "a").await.is_allowed());
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    let asked = with("'dev' in request.groups", true);
    assert!(matches!(decide(&asked, &ann, "a").await, Decision::Veto(_)));
}

#[tokio::test]
async fn authorization_webhook_of_the_older_version_has_a_group() {
    let (hook, _) = webhook(|spec| {
        assert_eq!(spec["group"], json!(["dev", "system:authenticated"]));
        assert!(spec["groups"].is_null());
        (200, json!({"allowed": true}))
    })
    .await;
    let hook = change(hook, |config| config.version = "v1beta1".to_owned());
    assert!(decide(&authorizer(vec![hook]), &user("ann"), "a").await.is_allowed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn authorization_webhook_is_asked_by_callers_that_cannot_wait() {
    let (hook, _) = webhook(|_| (200, json!({"allowed": true}))).await;
    let own = authorizer(vec![AuthorizerConfig::Local(Mode::AlwaysDeny), hook]);
    let ann = user("ann");
    assert!(
        own.decide(&Access { user: &ann, verb: "get", target: Target::Path("/x") }).is_allowed()
    );
}

#[tokio::test]
async fn authorization_config_reload_keeps_what_is_no_webhook() {
    let (AuthorizerConfig::Webhook(hook), _) = webhook(|_| (200, json!({"allowed": true}))).await
    else {
        panic!()
    };
    let Connection::Kubeconfig(kubeconfig) = hook.connection else { panic!() };
    let own = authorizer(vec![AuthorizerConfig::Local(Mode::AlwaysDeny)]);
    let file = |rest: &str| {
        format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\n\
             authorizers: [{rest}]\n"
        )
    };
    let deny = "{type: AlwaysDeny, name: alwaysdeny}";
    let hook = format!(
        "{{type: Webhook, name: w, webhook: {{timeout: 3s, subjectAccessReviewVersion: v1, \
         failurePolicy: Deny, connectionInfo: {{type: KubeConfigFile, kubeConfigFile: {}}}}}}}",
        kubeconfig.display()
    );
    let ann = user("ann");
    for (text, is_allowed) in [
        (file(&hook), false),
        (file("{type: AlwaysAllow, name: alwaysallow}"), false),
        (file(&format!("{deny}, {{type: AlwaysAllow, name: alwaysallow}}")), false),
        ("nonsense".to_owned(), false),
        (file(&format!("{deny}, {hook}")), true),
        (file("nonsense"), true),
        (file(deny), false),
    ] {
        own.reload(&text).ok();
        assert_eq!(decide(&own, &ann, "a").await.is_allowed(), is_allowed, "{text}");
    }
}
