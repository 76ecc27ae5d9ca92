//! What a FlexVolume driver gets about a volume: a JSON object of texts.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use longshore_pod::spec;

use crate::error::Error;
use crate::payload::fs_group;
use crate::persistent::FlexSource;
use crate::task::Task;

const FILE_SYSTEM: &str = "kubernetes.io/fsType";
const ACCESS: &str = "kubernetes.io/readwrite";
const NAME: &str = "kubernetes.io/pvOrVolumeName";
const SECRET: &str = "kubernetes.io/secret";
const GROUP: &str = "kubernetes.io/mounterArgs.FsGroup";
const POD_NAME: &str = "kubernetes.io/pod.name";
const POD_NAMESPACE: &str = "kubernetes.io/pod.namespace";
const POD_UID: &str = "kubernetes.io/pod.uid";
const ACCOUNT: &str = "kubernetes.io/serviceAccount.name";

/// The options of a volume for calls that are not about a pod.
pub(super) fn of_volume(task: &Task<'_>, source: &FlexSource) -> BTreeMap<String, String> {
    let mut options = source.options.clone();
    let access = if task.persistent.read_only { "ro" } else { "rw" };
    for (key, value) in [
        (FILE_SYSTEM, source.file_system.as_str()),
        (ACCESS, access),
        (NAME, &task.persistent.spec_name),
    ] {
        options.insert(key.to_owned(), value.to_owned());
    }
    options
}

/// The options for the mount for a pod, with its secret.
pub(super) async fn of_pod(
    task: &Task<'_>,
    source: &FlexSource,
) -> Result<BTreeMap<String, String>, Error> {
    let mut options = of_volume(task, source);
    let account = task.pod.spec.as_ref().and_then(|spec| spec.service_account_name.as_deref());
    for (key, value) in [
        (POD_NAME, spec::name(task.pod)),
        (POD_NAMESPACE, spec::namespace(task.pod)),
        (POD_UID, task.uid()),
        (ACCOUNT, account.unwrap_or_default()),
    ] {
        options.insert(key.to_owned(), value.to_owned());
    }
    if let Some(group) = fs_group(task.pod) {
        options.insert(GROUP.to_owned(), group.to_string());
    }
    for (key, value) in secret(task, source).await? {
        options.insert(format!("{SECRET}/{key}"), STANDARD.encode(value));
    }
    Ok(options)
}

/// The data of the secret, whose type has to name the driver.
async fn secret(task: &Task<'_>, source: &FlexSource) -> Result<BTreeMap<String, Vec<u8>>, Error> {
    let Some((namespace, name)) = source.secret.as_ref().filter(|(_, name)| !name.is_empty())
    else {
        return Ok(BTreeMap::new());
    };
    let namespace = namespace.as_deref().unwrap_or_else(|| spec::namespace(task.pod));
    let secret = task.node.objects.secret(namespace, name).await?;
    if secret.type_.as_deref() != Some(source.driver.as_str()) {
        let message = format!("cannot get secret of type {}", source.driver);
        return Err(Error::Flex { driver: source.driver.clone(), message });
    }
    let data = secret.data.iter().flatten();
    Ok(data.map(|(key, value)| (key.clone(), value.0.clone())).collect())
}
