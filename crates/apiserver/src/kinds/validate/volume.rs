//! Rules for volumes and for mounting them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{certificates, claim, one_of, pod_certificates, storage, supported};
use crate::schema::field::{Causes, Path};
use crate::schema::names;
use crate::schema::quantity::Quantity;
use crate::schema::resources::is_huge_page;
use crate::schema::value::{items, text};

const MODE: &str = "must be a number between 0 and 0777 (octal), both inclusive";
const HOST_PATH_TYPES: [&str; 8] = [
    "",
    "BlockDevice",
    "CharDevice",
    "Directory",
    "DirectoryOrCreate",
    "File",
    "FileOrCreate",
    "Socket",
];
const DOWNWARD_FIELDS: [&str; 5] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
];
const RESOURCES: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];

/// Checks the volumes of the pod of this name, or of a template; the good ones by name.
pub(in crate::kinds) fn volumes<'a>(
    path: &Path<'_>,
    volumes: &'a Value,
    pod: Option<&str>,
    causes: &mut Causes,
) -> BTreeMap<&'a str, &'a Value> {
    let mut good = BTreeMap::new();
    // a pod whose name is not known yet has claims of any name
    let pod = pod.filter(|pod| !pod.is_empty());
    let claim_of = |volume: &Value| match (pod, text(&volume["name"])) {
        (Some(pod), name) if !volume["ephemeral"].is_null() => Some(format!("{pod}-{name}")),
        _ => None,
    };
    let created: BTreeSet<String> = items(volumes).iter().filter_map(claim_of).collect();
    for (i, volume) in items(volumes).iter().enumerate() {
        let path = path.index(i);
        let before = causes.0.len();
        source(&path, volume, causes);
        let name = text(&volume["name"]);
        if let Some(claim) = claim_of(volume).filter(|_| !name.is_empty()) {
            for why in names::dns_subdomain(&claim) {
                causes.invalid(&path.child("name"), name, format!("PVC name {claim:?}: {why}"));
            }
        }
        if name.is_empty() {
            causes.required(&path.child("name"), "");
        } else {
            causes.each(&path.child("name"), name, names::dns_label(name));
        }
        if good.contains_key(name) {
            causes.duplicate(&path.child("name"), name, "");
        }
        if causes.0.len() == before {
            good.insert(name, volume);
        }
        let claim = text(&volume["persistentVolumeClaim"]["claimName"]);
        if created.contains(claim) {
            let source = path.child("persistentVolumeClaim");
            let why = "must not reference a PVC that gets created for an ephemeral volume";
            causes.invalid(&source.child("claimName"), claim, why);
        }
    }
    good
}

fn source(path: &Path<'_>, volume: &Value, causes: &mut Causes) {
    let given =
        volume.as_object().into_iter().flatten().filter(|(k, v)| *k != "name" && !v.is_null());
    let mut any = false;
    for (kind, source) in given {
        let path = path.child(kind);
        if any {
            causes.forbidden(&path, "may not specify more than 1 volume type");
            continue;
        }
        any = true;
        match kind.as_str() {
            "emptyDir" => empty_dir(&path, source, causes),
            "hostPath" => host_path(&path, source, causes),
            "secret" => keyed(&path, source, "secretName", causes),
            "configMap" => keyed(&path, source, "name", causes),
            "downwardAPI" => {
                mode(&path.child("defaultMode"), &source["defaultMode"], causes);
                for file in items(&source["items"]) {
                    downward_file(&path, file, causes);
                }
            }
            "projected" => projected(&path, source, causes),
            "persistentVolumeClaim" => {
                required(&path.child("claimName"), &source["claimName"], causes)
            }
            "ephemeral" => {
                let template = path.child("volumeClaimTemplate");
                claim::template(&template, &source["volumeClaimTemplate"], causes);
            }
            "csi" => csi(&path, source, causes),
            "nfs" => nfs(&path, source, causes),
            "iscsi" => iscsi(&path, source, causes),
            "image" => image(&path, source, causes),
            _ => {}
        }
    }
    if !any {
        causes.required(path, "must specify a volume type");
    }
}

fn required(path: &Path<'_>, value: &Value, causes: &mut Causes) {
    if text(value).is_empty() {
        causes.required(path, "");
    }
}

fn empty_dir(path: &Path<'_>, source: &Value, causes: &mut Causes) {
    if Quantity::parse(text(&source["sizeLimit"])).is_some_and(Quantity::is_negative) {
        let complaint = "SizeLimit field must be a valid resource quantity";
        causes.forbidden(&path.child("sizeLimit"), complaint);
    }
}

pub(in crate::kinds) fn host_path(path: &Path<'_>, source: &Value, causes: &mut Causes) {
    self::path(&path.child("path"), &source["path"], causes);
    let kind = text(&source["type"]);
    if !text(&source["path"]).is_empty() && !HOST_PATH_TYPES.contains(&kind) {
        causes.not_supported(&path.child("type"), kind, &HOST_PATH_TYPES);
    }
}

/// A path on a node.
pub(in crate::kinds) fn path(path: &Path<'_>, given: &Value, causes: &mut Causes) {
    required(path, given, causes);
    no_backsteps(path, text(given), causes);
}

pub(in crate::kinds) fn nfs(path: &Path<'_>, source: &Value, causes: &mut Causes) {
    required(&path.child("server"), &source["server"], causes);
    required(&path.child("path"), &source["path"], causes);
    if !text(&source["path"]).starts_with('/') {
        causes.invalid(&path.child("path"), text(&source["path"]), "must be an absolute path");
    }
}

pub(in crate::kinds) fn iscsi(path: &Path<'_>, source: &Value, causes: &mut Causes) {
    required(&path.child("targetPortal"), &source["targetPortal"], causes);
    required(&path.child("iqn"), &source["iqn"], causes);
    for field in ["iqn", "initiatorName"] {
        let name = text(&source[field]);
        if !name.is_empty() && !["iqn", "eui", "naa"].iter().any(|kind| name.starts_with(kind)) {
            let why = "must be valid format starting with iqn, eui, or naa";
            causes.invalid(&path.child(field), name, why);
        }
    }
    if let Some(lun) = source["lun"].as_i64().filter(|lun| !(0..=255).contains(lun)) {
        causes.invalid(&path.child("lun"), &lun, names::range(0, 255));
    }
    let needs_secret = source["chapAuthDiscovery"] == true || source["chapAuthSession"] == true;
    if needs_secret && source["secretRef"].is_null() {
        causes.required(&path.child("secretRef"), "");
    }
}

fn image(path: &Path<'_>, source: &Value, causes: &mut Causes) {
    required(&path.child("reference"), &source["reference"], causes);
    let policies = ["Always", "IfNotPresent", "Never"];
    if !text(&source["pullPolicy"]).is_empty() {
        one_of(&path.child("pullPolicy"), &source["pullPolicy"], &policies, causes);
    }
}

fn csi(path: &Path<'_>, source: &Value, causes: &mut Causes) {
    storage::driver_name(&path.child("driver"), text(&source["driver"]), causes);
    let secret = &source["nodePublishSecretRef"];
    if !secret.is_null() {
        let path = path.child("nodePublishSecretRef");
        required(&path.child("name"), &secret["name"], causes);
    }
}

/// A Secret or ConfigMap with a choice of its keys.
fn keyed(path: &Path<'_>, source: &Value, name: &str, causes: &mut Causes) {
    required(&path.child(name), &source[name], causes);
    mode(&path.child("defaultMode"), &source["defaultMode"], causes);
    let list = path.child("items");
    for (i, item) in items(&source["items"]).iter().enumerate() {
        let path = list.index(i);
        required(&path.child("key"), &item["key"], causes);
        required(&path.child("path"), &item["path"], causes);
        local(&path.child("path"), text(&item["path"]), causes);
        mode(&path.child("mode"), &item["mode"], causes);
    }
}

fn downward_file(path: &Path<'_>, file: &Value, causes: &mut Causes) {
    required(&path.child("path"), &file["path"], causes);
    local(&path.child("path"), text(&file["path"]), causes);
    mode(&path.child("mode"), &file["mode"], causes);
    match (file["fieldRef"].is_null(), file["resourceFieldRef"].is_null()) {
        (true, true) => causes.required(path, "one of fieldRef and resourceFieldRef is required"),
        (false, false) => {
            causes.invalid(
                path,
                "resource",
                "fieldRef and resourceFieldRef can not be specified simultaneously",
            );
        }
        _ => {
            field_ref(&path.child("fieldRef"), &file["fieldRef"], &DOWNWARD_FIELDS, causes);
            resource_ref(&path.child("resourceFieldRef"), &file["resourceFieldRef"], true, causes);
        }
    }
}

fn projected(path: &Path<'_>, projected: &Value, causes: &mut Causes) {
    mode(&path.child("defaultMode"), &projected["defaultMode"], causes);
    let mut paths = BTreeSet::new();
    // `shown` is what the message repeats, by default the path
    let mut taken = |given: &Value, shown: Option<&str>, causes: &mut Causes| {
        let given = text(given);
        if !given.is_empty() && !paths.insert(given.to_owned()) {
            causes.invalid(path, shown.unwrap_or(given), "conflicting duplicate paths");
        }
    };
    for (i, source) in items(&projected["sources"]).iter().enumerate() {
        let list = path.child("sources");
        let source_path = list.index(i);
        let given = source.as_object().into_iter().flatten().filter(|(_, v)| !v.is_null());
        for (n, (kind, source)) in given.enumerate() {
            if n == 1 {
                causes
                    .forbidden(&source_path, "may not specify more than 1 volume type per source");
            }
            let own = source_path.child(kind);
            match kind.as_str() {
                "secret" | "configMap" => keyed(&own, source, "name", causes),
                "downwardAPI" => items(&source["items"])
                    .iter()
                    .for_each(|file| downward_file(&own, file, causes)),
                "serviceAccountToken" => token(&own, path, source, causes),
                "podCertificate" => {
                    pod_certificate(&own, source, causes);
                    CERTIFICATE_PATHS.iter().for_each(|field| taken(&source[*field], None, causes));
                }
                _ => {}
            }
            let name = source["name"].as_str();
            items(&source["items"]).iter().for_each(|item| taken(&item["path"], name, causes));
            // upstream does not count the file of a token
            if kind != "serviceAccountToken" {
                taken(&source["path"], None, causes);
            }
        }
    }
}

/// The files of a source `podCertificate`.
const CERTIFICATE_PATHS: [&str; 3] = ["credentialBundlePath", "keyPath", "certificateChainPath"];
const KEY_TYPES: [&str; 6] =
    ["RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"];

fn pod_certificate(path: &Path<'_>, source: &Value, causes: &mut Causes) {
    let signer = text(&source["signerName"]);
    certificates::signer_name(&path.child("signerName"), signer, causes);
    let annotations = "userAnnotations";
    pod_certificates::user_annotations(&path.child(annotations), &source[annotations], causes);
    supported(&path.child("keyType"), &source["keyType"], &KEY_TYPES, causes);
    let longest = pod_certificates::longest(signer);
    let lifetime = path.child("maxExpirationSeconds");
    match source["maxExpirationSeconds"].as_i64() {
        Some(seconds) if seconds < 3600 => {
            let why = "if provided, maxExpirationSeconds must be >= 3600";
            causes.invalid(&lifetime, &seconds, why);
        }
        Some(seconds) if seconds > longest => {
            let why = format!("if provided, maxExpirationSeconds must be <= {longest}");
            causes.invalid(&lifetime, &seconds, why);
        }
        _ => {}
    }
    let given = CERTIFICATE_PATHS.iter().filter(|field| !text(&source[**field]).is_empty());
    for field in given.clone() {
        local(&path.child(field), text(&source[*field]), causes);
    }
    if given.count() == 0 {
        let why = "specify at least one of credentialBundlePath, keyPath, and certificateChainPath";
        causes.required(path, why);
    }
}

/// `volume` is the path that upstream names for that of the file.
fn token(path: &Path<'_>, volume: &Path<'_>, token: &Value, causes: &mut Causes) {
    let seconds = token["expirationSeconds"].as_i64().unwrap_or(0);
    token_life(&path.child("expirationSeconds"), seconds, causes);
    required(&volume.child("path"), &token["path"], causes);
    local(&volume.child("path"), text(&token["path"]), causes);
}

/// The bounds of a token's expiration.
pub(in crate::kinds) fn token_life(path: &Path<'_>, seconds: i64, causes: &mut Causes) {
    if seconds < 600 {
        causes.invalid(path, &seconds, "may not specify a duration less than 10 minutes");
    }
    if seconds > 1 << 32 {
        causes.invalid(path, &seconds, "may not specify a duration larger than 2^32 seconds");
    }
}

fn mode(path: &Path<'_>, value: &Value, causes: &mut Causes) {
    if let Some(mode) = value.as_i64().filter(|m| !(0..=0o777).contains(m)) {
        causes.invalid(path, &mode, MODE);
    }
}

/// A relative path that stays within the volume.
pub(in crate::kinds) fn descending(path: &Path<'_>, given: &str, causes: &mut Causes) {
    if given.starts_with('/') {
        causes.invalid(path, given, "must be a relative path");
    }
    no_backsteps(path, given, causes);
}

/// As [`descending`], and not one of the names that atomic updates of a volume use.
fn local(path: &Path<'_>, given: &str, causes: &mut Causes) {
    descending(path, given, causes);
    if given.starts_with("..") && !given.starts_with("../") && given != ".." {
        causes.invalid(path, given, "must not start with '..'");
    }
}

fn no_backsteps(path: &Path<'_>, given: &str, causes: &mut Causes) {
    if given.split('/').any(|part| part == "..") {
        causes.invalid(path, given, "must not contain '..'");
    }
}

/// The fields of pods that a selector or a reference can name.
const KNOWN_FIELDS: [&str; 14] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.phase",
    "status.podIP",
    "status.podIPs",
];

/// A `fieldRef`; `supported` are the fields allowed here.
pub(in crate::kinds) fn field_ref(
    path: &Path<'_>,
    reference: &Value,
    supported: &[&str],
    causes: &mut Causes,
) {
    if reference.is_null() {
        return;
    }
    let field = text(&reference["fieldPath"]);
    if field.is_empty() {
        return causes.required(&path.child("fieldPath"), "");
    }
    match field.strip_suffix("']").and_then(|f| f.split_once("['")) {
        Some(("metadata.annotations", key)) => {
            causes.each(path, key, names::qualified(&key.to_lowercase()))
        }
        Some(("metadata.labels", key)) => causes.each(path, key, names::qualified(key)),
        Some((other, _)) => causes.invalid(path, other, "does not support subscript"),
        None if !KNOWN_FIELDS.contains(&field) => {
            let why = format!("error converting fieldPath: field label not supported: {field}");
            causes.invalid(&path.child("fieldPath"), field, why);
        }
        None if !supported.contains(&field) => {
            causes.not_supported(&path.child("fieldPath"), field, supported)
        }
        None => {}
    }
}

/// A request or limit of a container.
pub(in crate::kinds) fn resource_ref(
    path: &Path<'_>,
    reference: &Value,
    in_volume: bool,
    causes: &mut Causes,
) {
    if reference.is_null() {
        return;
    }
    let resource = text(&reference["resource"]);
    let huge = ["limits.hugepages-", "requests.hugepages-"].iter().any(|p| resource.starts_with(p));
    if in_volume && text(&reference["containerName"]).is_empty() {
        causes.required(&path.child("containerName"), "");
    } else if resource.is_empty() {
        causes.required(&path.child("resource"), "");
    } else if !RESOURCES.contains(&resource) && !huge {
        causes.not_supported(&path.child("resource"), resource, &RESOURCES);
    } else {
        divisor(path, resource, text(&reference["divisor"]), causes);
    }
}

/// What a resource is counted in.
fn divisor(path: &Path<'_>, resource: &str, given: &str, causes: &mut Causes) {
    let (_, kind) = resource.split_once('.').unwrap_or_default();
    let (supported, words): (&[&str], &str) = match kind {
        "cpu" => (&["1m", "1"], "1m and 1"),
        _ => (
            &["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"],
            "1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei",
        ),
    };
    if !matches!(given, "" | "0") && !supported.contains(&given) {
        let kind = match kind {
            "ephemeral-storage" => "local ephemeral storage",
            kind if is_huge_page(kind) => "hugepages",
            kind => kind,
        };
        let why = format!("only divisor's values {words} are supported with the {kind} resource");
        causes.invalid(&path.child("divisor"), resource, why);
    }
}

/// A container's mounts name volumes of the pod, each path once.
pub(in crate::kinds) fn mounts(
    path: &Path<'_>,
    container: &Value,
    volumes: &BTreeMap<&str, &Value>,
    causes: &mut Causes,
) {
    let mut seen = BTreeSet::new();
    let list = path.child("volumeMounts");
    let devices = |field: &str| -> BTreeSet<&str> {
        items(&container["volumeDevices"]).iter().map(|device| text(&device[field])).collect()
    };
    let (device_names, device_paths) = (devices("name"), devices("devicePath"));
    for (i, mount) in items(&container["volumeMounts"]).iter().enumerate() {
        let path = list.index(i);
        let name = text(&mount["name"]);
        required(&path.child("name"), &mount["name"], causes);
        if !volumes.contains_key(name) {
            causes.not_found(&path.child("name"), name);
        }
        let target = text(&mount["mountPath"]);
        required(&path.child("mountPath"), &mount["mountPath"], causes);
        if !seen.insert(target) {
            causes.invalid(&path.child("mountPath"), target, "must be unique");
        }
        if device_names.contains(name) {
            causes.invalid(&path.child("name"), name, "must not already exist in volumeDevices");
        }
        if device_paths.contains(target) {
            causes.invalid(
                &path.child("mountPath"),
                target,
                "must not already exist as a path in volumeDevices",
            );
        }
        let (sub, sub_expr) = (text(&mount["subPath"]), text(&mount["subPathExpr"]));
        descending(&list.child("subPath"), sub, causes);
        descending(&list.child("subPathExpr"), sub_expr, causes);
        if !sub.is_empty() && !sub_expr.is_empty() {
            causes.invalid(
                &path.child("subPathExpr"),
                sub_expr,
                "subPathExpr and subPath are mutually exclusive",
            );
        }
        propagation(&list.child("mountPropagation"), mount, container, causes);
    }
}

/// A container's block devices name volumes that can be ones.
pub(in crate::kinds) fn devices(
    path: &Path<'_>,
    container: &Value,
    volumes: &BTreeMap<&str, &Value>,
    causes: &mut Causes,
) {
    let list = path.child("volumeDevices");
    let (mut names, mut paths) = (BTreeSet::new(), BTreeSet::new());
    for (i, device) in items(&container["volumeDevices"]).iter().enumerate() {
        let path = list.index(i);
        let (name_path, device_path) = (path.child("name"), path.child("devicePath"));
        let (name, target) = (text(&device["name"]), text(&device["devicePath"]));
        required(&name_path, &device["name"], causes);
        required(&device_path, &device["devicePath"], causes);
        if !names.insert(name) {
            causes.invalid(&name_path, name, "must be unique");
        }
        match volumes.get(name) {
            None => causes.not_found(&name_path, name),
            Some(volume)
                if volume["persistentVolumeClaim"].is_null() && volume["ephemeral"].is_null() =>
            {
                let why = "can only use volume source type of PersistentVolumeClaim or Ephemeral \
                           for block mode";
                causes.invalid(&name_path, name, why);
            }
            Some(_) => {}
        }
        if !target.is_empty() && !paths.insert(target) {
            causes.invalid(&device_path, target, "must be unique");
        }
        no_backsteps(&device_path, target, causes);
    }
}

fn propagation(path: &Path<'_>, mount: &Value, container: &Value, causes: &mut Causes) {
    let mode = &mount["mountPropagation"];
    if mode.is_null() {
        return;
    }
    one_of(path, mode, &["Bidirectional", "HostToContainer", "None"], causes);
    if mode == "Bidirectional" && container["securityContext"]["privileged"] != true {
        causes.forbidden(
            path,
            "Bidirectional mount propagation is available only to privileged containers",
        );
    }
}
