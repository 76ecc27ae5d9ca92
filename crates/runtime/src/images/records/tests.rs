use super::files::file_name;
use super::*;

const IMAGE: &str = "reg.example/app:1";
const REF: &str = "sha256:1234";

fn login(name: &str, hash: &str) -> SecretLogin {
    SecretLogin {
        uid: format!("uid-{name}"),
        namespace: "ns".to_owned(),
        name: name.to_owned(),
        hash: hash.to_owned(),
    }
}

async fn admits(records: &Records, logins: &[SecretLogin]) -> bool {
    records.admits(IMAGE, REF, async || logins.to_vec()).await.admits()
}

#[tokio::test]
async fn a_private_image_is_for_those_who_could_pull_it() {
    let dir = tempfile::tempdir().unwrap();
    let records = Records::new(Verification::Pulled, dir.path());
    assert!(admits(&records, &[]).await, "somebody put it there");
    let intention = records.intend(IMAGE).unwrap();
    assert!(!admits(&records, &[]).await, "it is being pulled");
    intention.pulled(REF, Access::of(Some(login("a", "1"))));

    assert!(!admits(&records, &[]).await);
    assert!(!admits(&records, &[login("b", "2")]).await);
    assert!(admits(&records, &[login("b", "2"), login("a", "1")]).await);
    assert!(admits(&records, &[login("b", "1")]).await, "the same login in another secret");
    assert!(admits(&records, &[login("b", "3")]).await, "which is known from now on");
    assert!(!admits(&records, &[login("c", "")]).await);
    let again = Records::new(Verification::Pulled, dir.path());
    assert!(admits(&again, &[login("b", "3")]).await && !admits(&again, &[]).await);

    again.intend(IMAGE).unwrap().pulled(REF, Access::of(None));
    assert!(admits(&again, &[]).await, "it was pulled without a login");
}

#[tokio::test]
async fn whom_to_ask_is_a_matter_of_policy() {
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
        assert_eq!(admits(&records, &[]).await, before, "{policy:?}");
        records.intend(IMAGE).unwrap().pulled(REF, Access::of(Some(login("a", "1"))));
        assert_eq!(admits(&records, &[]).await, after, "{policy:?}");
    }
}

#[tokio::test]
async fn files_are_the_go_kubelets() {
    let dir = tempfile::tempdir().unwrap();
    let records = Records::new(Verification::Pulled, dir.path());
    let pulling = dir.path().join("image_manager/pulling");
    let pulled = dir.path().join("image_manager/pulled");
    // The name and the content of a file in the Go kubelet's own tests.
    let name = "sha256-aef2af226629a35d5f3ef0fdbb29fdbebf038d0acd8850590e8c48e1e283aa56";
    let image = "docker.io/testing/test:latest";
    let (first, second) = (records.intend(image).unwrap(), records.intend(image).unwrap());
    let intent = std::fs::read_to_string(pulling.join(name)).unwrap();
    assert_eq!(
        intent.trim_end(),
        r#"{"kind":"ImagePullIntent","apiVersion":"kubelet.config.k8s.io/v1beta1","image":"docker.io/testing/test:latest"}"#
    );
    drop(first);
    assert!(pulling.join(name).exists(), "another pull is under way");
    second.pulled("testimageref", Access::of(Some(login("s", "h"))));
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
async fn of_a_removed_image_nothing_is_kept_unless_it_was_pulled_again() {
    let dir = tempfile::tempdir().unwrap();
    let records = Records::new(Verification::Pulled, dir.path());
    records.intend(IMAGE).unwrap().pulled(REF, Access::of(Some(login("a", "1"))));
    let hour = k8s_openapi::jiff::SignedDuration::from_hours(1);
    records.forget(REF, Timestamp::now() - hour);
    assert!(!admits(&records, &[]).await, "the removal is older than the pull");
    records.forget(REF, Timestamp::now() + hour);
    assert!(admits(&records, &[]).await, "nobody pulled what is there now");
    records.forget("sha256:other", Timestamp::now());
}

#[tokio::test]
async fn what_an_earlier_daemon_left_is_made_to_fit() {
    let dir = tempfile::tempdir().unwrap();
    let records = Records::new(Verification::Pulled, dir.path());
    records.intend("gone:1").unwrap().pulled("sha256:gone", Access::of(None));
    // A daemon that is killed drops nothing.
    std::mem::forget(records.intend(IMAGE).unwrap());
    std::mem::forget(records.intend("unfinished:1").unwrap());
    let records = Records::new(Verification::Pulled, dir.path());
    let image = Image { id: REF.to_owned(), repo_tags: vec![IMAGE.to_owned()], ..Image::default() };
    records.recover(&[image]);
    assert!(!admits(&records, &[]).await, "it was pulled, by nobody known");
    assert_eq!(all::<Pulled>(&records.pulled).len(), 1);
    let intents = all::<Intent>(&records.pulling);
    assert_eq!(intents.len(), 1);
    assert_eq!(intents[0].image, "unfinished:1");
    // Nobody gets to a private image by a file that is broken.
    records.intend(IMAGE).unwrap().pulled(REF, Access::of(None));
    assert!(admits(&records, &[]).await);
    std::fs::write(records.pulled.join(file_name(REF)), "{").unwrap();
    assert!(!admits(&records, &[]).await);
}
