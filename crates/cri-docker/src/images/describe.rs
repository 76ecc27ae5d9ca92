//! What the engine knows of an image, as CRI has it.

use bollard::models::{ImageHistoryResponseItem, ImageInspect, ImageSummary};
use jiff::Timestamp;
use longshore_cri::v1::{Image, ImageSpec, Int64Value};
use serde_json::{Map, Value, json};

use super::reference::{Name, Reference, is_hex, normalized};

/// An image of a list.
pub(super) fn listed(summary: &ImageSummary, pinned: &str) -> Image {
    let tags = normalized(&summary.repo_tags);
    let digests = normalized(&summary.repo_digests);
    image(summary.id.clone(), tags, digests, Some(summary.size), pinned)
}

/// An inspected image.
pub(super) fn inspected(inspect: &ImageInspect, pinned: &str) -> Image {
    let references = |list: &Option<Vec<String>>| normalized(list.as_deref().unwrap_or_default());
    let id = inspect.id.clone().unwrap_or_default();
    let (tags, digests) = (references(&inspect.repo_tags), references(&inspect.repo_digests));
    let user = inspect.config.as_ref().and_then(|config| config.user.as_deref());
    let (uid, username) = owner(user.unwrap_or_default());
    let annotations = inspect.descriptor.as_ref().and_then(|found| found.annotations.clone());
    let spec = annotations.filter(|found| !found.is_empty()).map(|found| ImageSpec {
        annotations: found.into_iter().collect(),
        ..ImageSpec::default()
    });
    Image { uid, username, spec, ..image(id, tags, digests, inspect.size, pinned) }
}

fn image(
    id: String,
    repo_tags: Vec<String>,
    repo_digests: Vec<String>,
    size: Option<i64>,
    pinned: &str,
) -> Image {
    let pinned = match Name::parse(pinned) {
        Ok(Name::Id(pinned)) => id == pinned,
        Ok(Name::Reference(pinned)) => is_named(&pinned.tagged(), &repo_tags, &repo_digests),
        Err(_) => false,
    };
    // an image without files has no size, and kubelets take that for an invalid answer
    let size = size.and_then(|size| u64::try_from(size).ok()).unwrap_or_default().max(1);
    Image { id, repo_tags, repo_digests, size, pinned, ..Image::default() }
}

/// Whether an image with these references is the one that is named: by its digest if there is one.
pub(super) fn is_named(name: &Reference, tags: &[String], digests: &[String]) -> bool {
    match name.digested() {
        Some(digested) => digests.contains(&digested),
        None => tags.contains(&name.to_string()),
    }
}

/// Whether an image is what a list is filtered for: an ID or the start of one, a repository, or an image
/// of one.
pub(super) fn is_listed_for(name: &Name, wanted: &str, image: &Image) -> bool {
    let name = match name {
        Name::Id(id) => return image.id == *id,
        Name::Reference(name) => name,
    };
    if name.tag.is_some() || name.digest.is_some() {
        return is_named(name, &image.repo_tags, &image.repo_digests);
    }
    let references = image.repo_tags.iter().chain(&image.repo_digests);
    let mut parsed = references.filter_map(|reference| Reference::parse(reference).ok());
    parsed.any(|reference| reference.repository == name.repository)
        || is_start_of(wanted, &image.id)
}

/// Whether a text is the start of an ID.
pub(super) fn is_start_of(text: &str, id: &str) -> bool {
    is_hex(text) && id.strip_prefix("sha256:").is_some_and(|digits| digits.starts_with(text))
}

/// The user ID or the name in `USER[:GROUP]`.
fn owner(user: &str) -> (Option<Int64Value>, String) {
    let user = user.split(':').next().unwrap_or_default();
    match user.parse() {
        Ok(value) => (Some(Int64Value { value }), String::new()),
        Err(_) => (None, user.to_owned()),
    }
}

/// The verbose information of an image, as JSON: its labels and its OCI configuration.
pub(super) fn verbose(inspect: &ImageInspect, history: &[ImageHistoryResponseItem]) -> String {
    let config = inspect.config.as_ref();
    let set = |list: Option<&Vec<String>>| {
        let entries = list.into_iter().flatten().map(|name| (name.clone(), json!({})));
        Value::Object(entries.collect::<Map<_, _>>())
    };
    let labels = config.and_then(|config| config.labels.as_ref());
    let root = inspect.root_fs.as_ref();
    // the engine tells the newest first
    let history = history.iter().rev().map(|item| {
        let created = Timestamp::from_second(item.created).map(|time| time.to_string()).ok();
        json!({
            "created": created, "created_by": item.created_by, "comment": item.comment,
            "empty_layer": item.size == 0,
        })
    });
    let spec = json!({
        "created": inspect.created,
        "author": inspect.author,
        "architecture": inspect.architecture,
        "os": inspect.os,
        "config": config.map(|config| json!({
            "User": config.user,
            "ExposedPorts": set(config.exposed_ports.as_ref()),
            "Env": config.env,
            "Entrypoint": config.entrypoint,
            "Cmd": config.cmd,
            "Volumes": set(config.volumes.as_ref()),
            "WorkingDir": config.working_dir,
            "Labels": labels,
            "StopSignal": config.stop_signal,
        })),
        "rootfs": root.map(|root| json!({ "type": root.typ, "diff_ids": root.layers })),
        "history": history.collect::<Vec<_>>(),
    });
    json!({ "labels": labels, "imageSpec": spec }).to_string()
}

#[cfg(test)]
mod tests {
    use bollard::models::ImageConfig;

    use super::*;

    const HEX: &str = "abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789";

    fn id() -> String {
        format!("sha256:{HEX}")
    }

    fn pause(tags: &[&str], size: i64) -> ImageInspect {
        ImageInspect {
            id: Some(id()),
            repo_tags: Some(tags.iter().map(|tag| (*tag).to_owned()).collect()),
            repo_digests: Some(vec![format!("pause@sha256:{HEX}"), "<none>@<none>".to_owned()]),
            size: Some(size),
            config: Some(ImageConfig {
                user: Some("65535:1".to_owned()),
                ..ImageConfig::default()
            }),
            ..ImageInspect::default()
        }
    }

    #[test]
    fn images_are_described_as_containerd_does() {
        let image = inspected(&pause(&["pause:3", "x.y/pause:3"], 7), "pause:3");
        assert_eq!(image.id, id());
        assert_eq!(image.repo_tags, ["docker.io/library/pause:3", "x.y/pause:3"]);
        assert_eq!(image.repo_digests, [format!("docker.io/library/pause@sha256:{HEX}")]);
        assert_eq!((image.size, image.uid), (7, Some(Int64Value { value: 65535 })));
        for (pinned, expected) in [
            ("docker.io/library/pause:3", true),
            ("pause", false),
            ("pause:4", false),
            (&format!("pause:4@sha256:{HEX}"), true),
            (&format!("x.y/pause@sha256:{HEX}"), false),
            (&id(), true),
            (HEX, true),
            ("", false),
        ] {
            let found = inspected(&pause(&["pause:3"], 7), pinned).pinned;
            assert_eq!(found, expected, "{pinned}");
        }
        for size in [0, -1, i64::MIN] {
            assert_eq!(inspected(&pause(&[], size), "").size, 1);
        }
        assert_eq!(inspected(&ImageInspect::default(), "").size, 1);
    }

    #[test]
    fn image_users_are_ids_or_names() {
        for (user, uid, name) in [
            ("", None, ""),
            ("0", Some(0), ""),
            ("1000:2000", Some(1000), ""),
            ("nobody", None, "nobody"),
            ("nobody:nogroup", None, "nobody"),
            ("99999999999999999999", None, "99999999999999999999"),
        ] {
            let (found, username) = owner(user);
            assert_eq!((found.map(|id| id.value), username.as_str()), (uid, name), "{user}");
        }
    }

    #[test]
    fn images_are_filtered() {
        let image = inspected(&pause(&["x.y/pause:3"], 7), "");
        for (wanted, expected) in [
            ("x.y/pause", true),
            ("x.y/pause:3", true),
            ("x.y/pause:4", false),
            ("x.y/paus", false),
            ("pause", true),
            ("pause:3", false),
            (&format!("pause@sha256:{HEX}"), true),
            (&format!("x.y/pause@sha256:{HEX}"), false),
            (&id(), true),
            (HEX, true),
            ("abcdef", true),
            ("bcdef", false),
        ] {
            let name = Name::parse(wanted).unwrap();
            assert_eq!(is_listed_for(&name, wanted, &image), expected, "{wanted}");
        }
    }

    #[test]
    fn verbose_information_is_the_configuration() {
        let history = |created, size| ImageHistoryResponseItem {
            created,
            size,
            created_by: format!("step {created}"),
            ..ImageHistoryResponseItem::default()
        };
        let mut image = pause(&[], 7);
        if let Some(config) = &mut image.config {
            config.exposed_ports = Some(vec!["80/tcp".to_owned()]);
        }
        let text = verbose(&image, &[history(i64::MAX, 1), history(0, 0)]);
        let read: Value = serde_json::from_str(&text).unwrap();
        let spec = &read["imageSpec"];
        assert_eq!(spec["config"]["User"], "65535:1");
        assert_eq!(spec["config"]["ExposedPorts"], json!({"80/tcp": {}}));
        assert_eq!(spec["history"][0]["created"], "1970-01-01T00:00:00Z");
        assert_eq!(spec["history"][0]["empty_layer"], true);
        assert_eq!(spec["history"][1]["created"], Value::Null);
    }
}
