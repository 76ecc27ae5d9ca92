//! The checkpoint in upstream's format.

use parking_lot::Mutex;
use serde_json::Value;

use crate::checkpoint::{Checkpoint, decode, encode};
use crate::claims::Claims;

/// As a Go kubelet has written it.
const RECORDED: &str = r#"{"Data":"{\"kind\":\"DRACheckpoint\",\"apiVersion\":\"checkpoint.dra.kubelet.k8s.io/v1\",\"ClaimInfoStateList\":[{\"ClaimUID\":\"067798be-454e-4be4-9047-1aa06aea63f7\",\"ClaimName\":\"example\",\"Namespace\":\"default\",\"PodUIDs\":{\"139cdb46-f989-4f17-9561-ca10cfb509a6\":{}},\"DriverState\":{\"test-driver.cdi.k8s.io\":{\"Devices\":[{\"PoolName\":\"worker-1\",\"DeviceName\":\"dev-1\",\"ShareID\":\"aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa\",\"RequestNames\":[\"test request\"],\"CDIDeviceIDs\":[\"example.com/example=cdi-example\"]}]}}}]}","Checksum":736302156}"#;
const WITHOUT_SHARE: &str = r#"{"Data":"{\"kind\":\"DRACheckpoint\",\"apiVersion\":\"checkpoint.dra.kubelet.k8s.io/v1\",\"ClaimInfoStateList\":[{\"ClaimUID\":\"067798be-454e-4be4-9047-1aa06aea63f7\",\"ClaimName\":\"example\",\"Namespace\":\"default\",\"PodUIDs\":{\"139cdb46-f989-4f17-9561-ca10cfb509a6\":{}},\"DriverState\":{\"test-driver.cdi.k8s.io\":{\"Devices\":[{\"PoolName\":\"worker-1\",\"DeviceName\":\"dev-1\",\"ShareID\":null,\"RequestNames\":[\"test request\"],\"CDIDeviceIDs\":[\"example.com/example=cdi-example\"]}]}}}]}","Checksum":2570581864}"#;
/// As upstream writes it without claims; its checksum is computed here.
const NONE: &str = r#"{"kind":"DRACheckpoint","apiVersion":"checkpoint.dra.kubelet.k8s.io/v1","ClaimInfoStateList":null}"#;

#[test]
fn claim_checkpoint_of_a_go_kubelet_is_read_and_written_alike() {
    for recorded in [RECORDED, WITHOUT_SHARE] {
        let claims = decode(recorded.as_bytes()).unwrap();
        let claim = claims.iter().next().unwrap();
        assert_eq!((claim.name.as_str(), claim.is_prepared), ("example", false));
        assert_eq!(String::from_utf8(encode(&claims).unwrap()).unwrap(), recorded);
    }
    let empty: Value = serde_json::from_slice(&encode(&Claims::default()).unwrap()).unwrap();
    assert_eq!(empty["Data"], NONE);
    assert_eq!(decode(&encode(&Claims::default()).unwrap()).unwrap(), Claims::default());
}

#[test]
fn claim_checkpoint_that_is_damaged_is_an_error_with_its_path() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("dra_manager_state");
    assert!(Checkpoint::open(dir.path()).is_ok(), "there is none");
    for damaged in ["", "{}", "null", &RECORDED.replace("dev-1", "dev-2")] {
        std::fs::write(&path, damaged).unwrap();
        let error = Checkpoint::open(dir.path()).err().unwrap().to_string();
        assert!(error.contains(&path.display().to_string()), "{error}");
    }
}

#[tokio::test]
async fn claim_checkpoint_is_replaced_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (checkpoint, _) = Checkpoint::open(dir.path()).unwrap();
    let claims = Mutex::new(decode(RECORDED.as_bytes()).unwrap());
    checkpoint.write(&claims).await.unwrap();
    let (_, restored) = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(restored, *claims.lock());
    std::fs::remove_dir_all(dir.path()).unwrap();
    let error = checkpoint.write(&claims).await.unwrap_err().to_string();
    assert!(error.contains("dra_manager_state"), "{error}");
}
