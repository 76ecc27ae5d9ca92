//! Authentication and authorization.

use super::*;

#[tokio::test]
async fn authorization_is_required() {
    let setup = setup(&WEBHOOK, &[("admin", "get proxy"), ("robot", "get pods")]).await;
    setup.pki.issue("server", "admin", ExtendedUse::ServerAuth);
    let untrusted = Pki::new();
    untrusted.issue("admin", "admin", ExtendedUse::ClientAuth);
    for file in ["untrusted.crt", "untrusted.key"] {
        fs::copy(untrusted.path(&file.replace("untrusted", "admin")), setup.pki.path(file))
            .unwrap();
    }
    for (certificate, token, path, expected) in [
        (Some("admin"), None, "/pods", 200),
        (Some("admin"), None, LOGS, 200),
        (Some("admin"), None, "/metrics", 403),
        (Some("admin"), None, "/nothing", 404),
        (Some("admin"), None, "/debug/pprof/", 200),
        (Some("admin"), None, "/configz", 200),
        (Some("admin"), None, "/flagz", 403),
        (None, None, "/pods", 401),
        (None, None, "/nothing", 401),
        (None, Some("good"), "/pods", 200),
        (None, Some("good"), LOGS, 403),
        (None, Some("bad"), "/pods", 401),
        // certificates of another CA or usage are invalid; a token is used if present
        (Some("untrusted"), None, "/pods", 401),
        (Some("server"), None, "/pods", 401),
        (Some("untrusted"), Some("good"), "/pods", 200),
    ] {
        let (status, body) = setup.get(certificate, token, path).await;
        assert_eq!(status, expected, "{certificate:?} {token:?} {path}: {body}");
        if status == 403 && certificate.is_some() {
            let asked = path.trim_start_matches('/').replace("flagz", "configz");
            assert_eq!(
                body,
                format!(
                    "Forbidden (user=admin, verb=get, resource=nodes, subresource(s)=[{asked}])\n"
                )
            );
        }
    }
    let (status, _) = exchange(setup.connect(Some("admin")).await, None, "POST", "/pods").await;
    assert_eq!(status, 403, "a POST needs another verb than a GET");
    let (status, body) =
        exchange(setup.connect(Some("admin")).await, None, "POST", "/checkpoint/ns/p/c").await;
    assert!(
        status == 403 && body.contains("verb=create, resource=nodes, subresource(s)=[checkpoint]")
    );
}

/// kubernetes/kubernetes#136550, which has no CVE: `get nodes/proxy` is enough to run commands over
/// a WebSocket.
#[tokio::test]
async fn authorization_strict_mode_denies_exec_to_readers() {
    const RULES: [(&str, &str); 2] = [("admin", "get proxy"), ("robot", "create proxy")];
    let paths = ["/exec/ns/p/c?output=1", "/attach/ns/p/c?output=1", "/portForward/ns/p"];
    let strict = WEBHOOK.into_iter().chain(["--authorization-strict-streams"]).collect::<Vec<_>>();
    let strict = setup(&strict, &RULES).await;
    for path in paths.into_iter().chain(["/run/ns/p/c"]) {
        let (status, body) = strict.get(Some("admin"), None, path).await;
        assert_eq!(status, 403, "{path}: {body}");
        assert!(body.contains("verb=create"), "{body}");
        let (status, body) = strict.get(None, Some("good"), path).await;
        assert!(matches!(status, 405 | 500), "{path}: {status} {body}");
    }
    assert_eq!(
        strict.get(Some("admin"), None, LOGS).await.0,
        200,
        "read-only paths are not affected"
    );
    // as upstream, the verb of a GET is `get`
    let usual = setup(&WEBHOOK, &RULES).await;
    for path in paths {
        assert_eq!(usual.get(Some("admin"), None, path).await.0, 500, "{path}");
        assert_eq!(usual.get(None, Some("good"), path).await.0, 403, "{path}");
    }
}

#[tokio::test]
async fn authorization_decisions_are_cached() {
    let setup = setup(&WEBHOOK, &[("robot", "get pods")]).await;
    for _ in 0..3 {
        assert_eq!(setup.get(None, Some("good"), "/pods").await.0, 200);
    }
    assert_eq!(setup.reviews.asked.load(Ordering::SeqCst), 2, "one token and one access review");
    setup.reviews.failing.store(true, Ordering::SeqCst);
    assert_eq!(setup.get(None, Some("good"), "/pods").await.0, 200);
    assert_eq!(setup.get(None, Some("other"), "/pods").await.0, 401);
    let (status, body) = setup.get(Some("admin"), None, "/pods").await;
    assert_eq!(
        (status, body.starts_with("Authorization error (user=admin")),
        (500, true),
        "{body}"
    );
}

/// Many forged tokens do not evict a valid one from the cache.
#[tokio::test]
async fn authentication_cache_resists_forged_tokens() {
    let setup = setup(&WEBHOOK, &[("robot", "get pods")]).await;
    assert_eq!(setup.get(None, Some("good"), "/pods").await.0, 200);
    for n in 0..80 {
        assert_eq!(setup.get(None, Some(&format!("bad-{n}")), "/pods").await.0, 401);
    }
    let asked = setup.reviews.asked.load(Ordering::SeqCst);
    assert_eq!(setup.get(None, Some("good"), "/pods").await.0, 200);
    assert_eq!(setup.reviews.asked.load(Ordering::SeqCst), asked, "the good one is remembered");
}

/// Finding 8: requests that wait for a TokenReview hold their headers, so their number is limited.
#[tokio::test]
async fn authentication_token_reviews_are_limited() {
    let setup = Arc::new(setup(&WEBHOOK, &[("admin", "get pods")]).await);
    assert_eq!(setup.get(Some("admin"), None, "/pods").await.0, 200);
    setup.reviews.hangs.store(true, Ordering::SeqCst);
    let asked = setup.reviews.asked.load(Ordering::SeqCst);
    let mut asking = tokio::task::JoinSet::new();
    for n in 0..40 {
        let setup = Arc::clone(&setup);
        asking.spawn(async move { setup.get(None, Some(&format!("bad-{n}")), "/pods").await.0 });
    }
    // one address may use half of the limit
    for _ in 0..40 - 32 {
        assert_eq!(asking.join_next().await.unwrap().unwrap(), 429);
    }
    let more = tokio::time::timeout(Duration::from_millis(100), asking.join_next()).await;
    assert!(more.is_err(), "the others wait");
    assert!(setup.reviews.asked.load(Ordering::SeqCst) <= asked + 8);
    assert_eq!(
        setup.get(Some("admin"), None, "/pods").await.0,
        200,
        "other requests are not delayed"
    );
}

/// As upstream, an untrusted certificate is refused with 401, also with anonymous access.
#[tokio::test]
async fn authentication_invalid_credentials_are_not_anonymous() {
    let open = ["--anonymous-auth=true", "--authorization-mode=AlwaysAllow"];
    let setup = setup(&open, &[]).await;
    setup.pki.issue("server", "admin", ExtendedUse::ServerAuth);
    assert_eq!(setup.get(None, None, "/pods").await.0, 200);
    assert_eq!(setup.get(Some("admin"), None, "/pods").await.0, 200);
    let (status, body) = setup.get(Some("server"), None, "/pods").await;
    assert_eq!((status, body.as_str()), (401, "Unauthorized"));
    // without a webhook tokens are ignored
    assert_eq!(setup.get(None, Some("bad"), "/pods").await.0, 200);
}

#[tokio::test]
async fn authorization_always_allow() {
    let setup = setup(&["--anonymous-auth=true", "--authorization-mode=AlwaysAllow"], &[]).await;
    assert_eq!(setup.get(None, None, "/pods").await.0, 200);
    let mode = fs::metadata(setup.pki.path("own/kubelet.key")).unwrap();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode.permissions()) & 0o777, 0o600);
}
