use super::files::file_name;
use super::*;
use crate::images::credentials::{AccountLogin, SecretLogin};

const IMAGE: &str = "reg.example/app:1";
const REF: &str = "sha256:1234";

/// Access with a secret.
fn of(login: SecretLogin) -> Access {
    Access::of(Source::Secret(login))
}

/// Access for all pods.
fn for_all() -> Access {
    Access::of(Source::Node)
}

fn login(name: &str, hash: &str) -> SecretLogin {
    SecretLogin {
        uid: format!("uid-{name}"),
        namespace: "ns".to_owned(),
        name: name.to_owned(),
        hash: hash.to_owned(),
    }
}

async fn allows(records: &Records, logins: &[SecretLogin]) -> bool {
    let logins = PodLogins { secrets: logins.to_vec(), account: None };
    records.check(IMAGE, REF, async || logins).await.is_allowed()
}

#[tokio::test]
async fn image_pull_records_limit_private_images() {
    let dir = tempfile::tempdir().unwrap();
    let records = Records::new(Verification::Pulled, dir.path());
    assert!(allows(&records, &[]).await, "it was not pulled by the node");
    let intention = records.record_intent(IMAGE).unwrap();
    assert!(!allows(&records, &[]).await, "it is being pulled");
    intention.pulled(REF, of(login("a", "1")));

    assert!(!allows(&records, &[]).await);
    assert!(!allows(&records, &[login("b", "2")]).await);
    assert!(allows(&records, &[login("b", "2"), login("a", "1")]).await);
    assert!(allows(&records, &[login("b", "1")]).await, "the same login in another secret");
    assert!(allows(&records, &[login("b", "3")]).await, "which is known from now on");
    assert!(!allows(&records, &[login("c", "")]).await);
    let again = Records::new(Verification::Pulled, dir.path());
    assert!(allows(&again, &[login("b", "3")]).await && !allows(&again, &[]).await);

    again.record_intent(IMAGE).unwrap().pulled(REF, for_all());
    assert!(allows(&again, &[]).await, "it was pulled without a login");
}

#[tokio::test]
async fn image_verification_policies() {
    let allowed = |names: &[&str]| {
        Verification::AllBut(names.iter().map(|name| (*name).to_owned()).collect())
    };
    for (policy, before, after) in [
        (Verification::Off, true, true),
        (Verification::Never, true, true),
        (Verification::Pulled, true, false),
        (Verification::All, false, false),
        (allowed(&["reg.example/app"]), true, true),
        (allowed(&["reg.example/*"]), true, true),
        (allowed(&["reg.example/ap"]), false, false),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::new(policy.clone(), dir.path());
        assert_eq!(allows(&records, &[]).await, before, "{policy:?}");
        records.record_intent(IMAGE).unwrap().pulled(REF, of(login("a", "1")));
        assert_eq!(allows(&records, &[]).await, after, "{policy:?}");
    }
}

#[tokio::test]
async fn image_pull_records_equal_the_go_kubelets() {
    let dir = tempfile::tempdir().unwrap();
    let records = Records::new(Verification::Pulled, dir.path());
    let pulling = dir.path().join("image_manager/pulling");
    let pulled = dir.path().join("image_manager/pulled");
    // Name and content of a file in the Go kubelet's own tests.
    let name = "sha256-aef2af226629a35d5f3ef0fdbb29fdbebf038d0acd8850590e8c48e1e283aa56";
    let image = "docker.io/testing/test:latest";
    let (first, second) =
        (records.record_intent(image).unwrap(), records.record_intent(image).unwrap());
    let intent = std::fs::read_to_string(pulling.join(name)).unwrap();
    assert_eq!(
        intent.trim_end(),
        r#"{"kind":"ImagePullIntent","apiVersion":"kubelet.config.k8s.io/v1beta1","image":"docker.io/testing/test:latest"}"#
    );
    drop(first);
    assert!(pulling.join(name).exists(), "another pull is under way");
    second.pulled("testimageref", of(login("s", "h")));
    assert!(!pulling.join(name).exists());
    let record = std::fs::read_to_string(pulled.join(file_name("testimageref"))).unwrap();
    let (head, tail) = record.split_once(r#""lastUpdatedTime":""#).unwrap();
    assert_eq!(
        head,
        r#"{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1","#
    );
    let (time, tail) = tail.split_once('"').unwrap();
    assert_eq!(time.len(), "2026-01-01T00:00:00Z".len());
    assert_eq!(
        tail.trim_end(),
        r#","imageRef":"testimageref","credentialMapping":{"docker.io/testing/test":{"kubernetesSecrets":[{"uid":"uid-s","namespace":"ns","name":"s","credentialHash":"h"}]}}}"#
    );
}

#[tokio::test]
async fn image_pull_records_of_removed_images_are_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let records = Records::new(Verification::Pulled, dir.path());
    records.record_intent(IMAGE).unwrap().pulled(REF, of(login("a", "1")));
    let hour = k8s_openapi::jiff::SignedDuration::from_hours(1);
    records.forget(REF, Timestamp::now() - hour);
    assert!(!allows(&records, &[]).await, "the removal is older than the pull");
    records.forget(REF, Timestamp::now() + hour);
    assert!(allows(&records, &[]).await, "the present image has no record");
    records.forget("sha256:other", Timestamp::now());
}

#[tokio::test]
async fn image_pull_records_are_recovered() {
    let dir = tempfile::tempdir().unwrap();
    let records = Records::new(Verification::Pulled, dir.path());
    records.record_intent("gone:1").unwrap().pulled("sha256:gone", for_all());
    // A daemon that is killed drops nothing.
    std::mem::forget(records.record_intent(IMAGE).unwrap());
    std::mem::forget(records.record_intent("unfinished:1").unwrap());
    let records = Records::new(Verification::Pulled, dir.path());
    let image = Image { id: REF.to_owned(), repo_tags: vec![IMAGE.to_owned()], ..Image::default() };
    records.recover(&[image]);
    assert!(!allows(&records, &[]).await, "it was pulled, without a known credential");
    assert_eq!(all::<Pulled>(&records.pulled).len(), 1);
    let intents = all::<Intent>(&records.pulling);
    assert_eq!(intents.len(), 1);
    assert_eq!(intents[0].image, "unfinished:1");
    // An invalid file does not give access to a private image.
    records.record_intent(IMAGE).unwrap().pulled(REF, for_all());
    assert!(allows(&records, &[]).await);
    std::fs::write(records.pulled.join(file_name(REF)), "{").unwrap();
    assert!(!allows(&records, &[]).await);
}

#[tokio::test]
async fn image_pull_records_limit_images_of_service_accounts() {
    let dir = tempfile::tempdir().unwrap();
    let records = Records::new(Verification::Pulled, dir.path());
    let account = |name: &str| AccountLogin {
        uid: format!("uid-{name}"),
        namespace: "ns".to_owned(),
        name: name.to_owned(),
    };
    let allows = async |name: Option<&str>| {
        let logins = PodLogins { secrets: Vec::new(), account: name.map(account) };
        records.check(IMAGE, REF, async || logins).await.is_allowed()
    };
    let pulled = |source| records.record_intent(IMAGE).unwrap().pulled(REF, Access::of(source));
    pulled(Source::Account(account("b")));
    assert!(allows(Some("b")).await && !allows(Some("a")).await && !allows(None).await);
    pulled(Source::Account(account("a")));
    pulled(Source::Account(account("a")));
    assert!(allows(Some("b")).await && allows(Some("a")).await);
    let file = dir.path().join("image_manager/pulled").join(file_name(REF));
    let record = std::fs::read_to_string(&file).unwrap();
    let expected = r#""kubernetesServiceAccounts":[{"uid":"uid-a","namespace":"ns","name":"a"},{"uid":"uid-b","namespace":"ns","name":"b"}]"#;
    assert!(record.contains(expected), "{record}");
    pulled(Source::Node);
    assert!(allows(None).await);
    let asked = std::cell::Cell::new(false);
    records
        .check(IMAGE, REF, async || {
            asked.set(true);
            PodLogins::default()
        })
        .await;
    assert!(!asked.get(), "no plugin is called for an image that is for all pods");
}
