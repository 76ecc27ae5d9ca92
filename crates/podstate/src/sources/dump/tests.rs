use std::path::{Path, PathBuf};

use longshore_pod::spec;

use super::*;
use crate::sources::manifest::Origin;
use crate::sources::{defaults, manifest};

fn testdata(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/sources/dump/testdata").join(file)
}

fn read(file: &str) -> String {
    std::fs::read_to_string(testdata(file)).expect(file)
}

/// The UIDs that upstream's own code computes: as a file of `/etc/kubernetes/manifests` on `node-1`
/// (- for one that is accepted from a URL only), and as `http://10.0.0.1/NAME`.
#[test]
fn static_pod_uids_equal_upstream() {
    for line in read("uids.txt").lines() {
        let [file, as_file, as_url] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        let text = read(file);
        let path = format!("/etc/kubernetes/manifests/{file}");
        let own = manifest::pod(text.as_bytes(), Origin::File(Path::new(&path)), "node-1");
        match (own, as_file) {
            (own, "-") => assert!(own.is_err(), "{file} is taken"),
            (own, uid) => assert_eq!(spec::uid(&own.expect(file)), uid, "{file}"),
        }
        let url = format!("http://10.0.0.1/{file}");
        let pods = manifest::pods(text.as_bytes(), Origin::Url(&url), "node-1").expect(file);
        let uids: Vec<&str> = pods.iter().flatten().map(spec::uid).collect();
        assert_eq!(uids.join(","), as_url, "{url}");
    }
}

/// A pod with every field except times has upstream's UID, though it could not run.
#[test]
fn static_pod_uid_covers_all_fields() {
    let mut pod = serde_json::from_str::<Pod>(&read("every-field.json")).unwrap();
    defaults::apply(&mut pod);
    let path = "/etc/kubernetes/manifests/every-field.json";
    assert_eq!(
        uid(&pod, format_args!("host:node-1file:{path}")),
        "57e08b2b8d4e899e22967a446f5f6d7b"
    );
}
