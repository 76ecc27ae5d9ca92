//! Labels of the engine's containers. Docker had no annotations, so they are labels with a prefix.

use std::collections::{BTreeMap, HashMap};

/// Labels and annotations, as CRI has them.
pub(crate) type Map = BTreeMap<String, String>;

/// Says what a container is to Kubernetes; one without it is somebody else's.
pub(crate) const TYPE: &str = "io.kubernetes.docker.type";
/// The path of a container's log.
pub(crate) const LOG_PATH: &str = "io.kubernetes.container.logpath";
/// The sandbox of a container.
pub(crate) const SANDBOX: &str = "io.kubernetes.sandbox.id";
/// The kubelet's name of a container; a sandbox has [`SANDBOX_NAME`].
const CONTAINER_NAME: &str = "io.kubernetes.container.name";
/// What stands for the container's name in a sandbox.
pub(crate) const SANDBOX_NAME: &str = "POD";
const ANNOTATION: &str = "annotation.";

/// What a container of the engine is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Sandbox,
    Container,
}

impl Kind {
    /// The value of the label [`TYPE`].
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Sandbox => "podsandbox",
            Self::Container => "container",
        }
    }

    /// For messages.
    pub(crate) fn noun(self) -> &'static str {
        match self {
            Self::Sandbox => "sandbox",
            Self::Container => "container",
        }
    }

    /// `None` for what is not of Kubernetes.
    pub(crate) fn of(labels: &HashMap<String, String>) -> Option<Self> {
        let label = labels.get(TYPE)?;
        [Self::Sandbox, Self::Container].into_iter().find(|kind| kind.label() == label)
    }

    /// The filter of the engine's lists and events.
    pub(crate) fn filter(self) -> String {
        format!("{TYPE}={}", self.label())
    }
}

/// The labels of a new sandbox.
pub(crate) fn of_sandbox(labels: &Map, annotations: &Map) -> HashMap<String, String> {
    let mut all = merged(labels, annotations);
    all.insert(TYPE.to_owned(), Kind::Sandbox.label().to_owned());
    all.insert(CONTAINER_NAME.to_owned(), SANDBOX_NAME.to_owned());
    all
}

/// The labels of a new container.
pub(crate) fn of_container(
    labels: &Map,
    annotations: &Map,
    sandbox: &str,
    log_path: &str,
) -> HashMap<String, String> {
    let mut all = merged(labels, annotations);
    all.insert(TYPE.to_owned(), Kind::Container.label().to_owned());
    all.insert(SANDBOX.to_owned(), sandbox.to_owned());
    all.insert(LOG_PATH.to_owned(), log_path.to_owned());
    all
}

fn merged(labels: &Map, annotations: &Map) -> HashMap<String, String> {
    let annotations =
        annotations.iter().map(|(key, value)| (format!("{ANNOTATION}{key}"), value.clone()));
    labels.iter().map(|(key, value)| (key.clone(), value.clone())).chain(annotations).collect()
}

/// Labels and annotations, without those of this crate.
pub(crate) fn split(all: &HashMap<String, String>) -> (Map, Map) {
    let is_sandbox = Kind::of(all) == Some(Kind::Sandbox);
    let (mut labels, mut annotations) = (Map::new(), Map::new());
    for (key, value) in all {
        if matches!(key.as_str(), TYPE | LOG_PATH | SANDBOX)
            || (is_sandbox && key == CONTAINER_NAME)
        {
            continue;
        }
        match key.strip_prefix(ANNOTATION) {
            Some(key) => annotations.insert(key.to_owned(), value.clone()),
            None => labels.insert(key.clone(), value.clone()),
        };
    }
    (labels, annotations)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> Map {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn labels_and_annotations_come_back() {
        let (labels, annotations) =
            (map(&[("app", "x"), (CONTAINER_NAME, "c")]), map(&[("app", "y"), ("a.b/c", "")]));
        let all = of_container(&labels, &annotations, "s1", "/var/log/pods/x/c/0.log");
        assert_eq!(Kind::of(&all), Some(Kind::Container));
        assert_eq!(all.get("annotation.app").map(String::as_str), Some("y"));
        assert_eq!(all.get(SANDBOX).map(String::as_str), Some("s1"));
        assert_eq!(split(&all), (labels, annotations.clone()));

        let all = of_sandbox(&map(&[("app", "x")]), &annotations);
        assert_eq!(Kind::of(&all), Some(Kind::Sandbox));
        assert_eq!(all.get(CONTAINER_NAME).map(String::as_str), Some("POD"));
        assert_eq!(split(&all), (map(&[("app", "x")]), annotations));
    }

    #[test]
    fn containers_of_others_have_no_kind() {
        assert_eq!(Kind::of(&HashMap::new()), None);
        let other = [(TYPE.to_owned(), "other".to_owned())].into();
        assert_eq!(Kind::of(&other), None);
    }
}
