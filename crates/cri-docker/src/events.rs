//! Events of containers: the engine's stream → CRI's, with how everything stands after each where that is wanted. One
//! stream of the engine serves all callers; nothing is asked for while there are none.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bollard::models::EventMessage;
use bollard::query_parameters::EventsOptionsBuilder;
use futures::StreamExt;
use longshore_cri::v1::{
    ContainerEventResponse, ContainerEventType, PodSandboxMetadata, PodSandboxStatus,
};
use tokio_util::sync::CancellationToken;

use crate::labels::{self, Kind};
use crate::runtime::DockerRuntime;
use crate::{Error, Result, names, timestamp};

/// Pauses before the engine is tried again, at first and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

impl DockerRuntime {
    /// Follows the engine, also through its restarts, until `stop`.
    pub(crate) async fn follow(self: Arc<Self>, stop: CancellationToken) {
        let mut since = timestamp::now();
        let mut pause = PAUSES.0;
        loop {
            let followed = tokio::select! {
                followed = self.follow_once(&mut since) => followed,
                () = stop.cancelled() => return,
            };
            self.events_followed(false);
            match followed {
                Ok(()) => {
                    tracing::info!("the Docker Engine has ended its stream of events");
                    pause = PAUSES.0;
                }
                Err(error) => tracing::warn!("events of the Docker Engine: {error}"),
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => pause = pause.saturating_mul(2).min(PAUSES.1),
                () = stop.cancelled() => return,
            }
        }
    }

    /// Follows one stream of events, from the last one seen.
    async fn follow_once(self: &Arc<Self>, since: &mut i64) -> Result<()> {
        self.engine.negotiate().await?;
        self.resume_logs().await;
        self.events_followed(true);
        let types = vec!["container".to_owned(), IMAGE.to_owned()];
        let actions = CONTAINER_ACTIONS.iter().chain(IMAGE_ACTIONS).map(|&one| one.to_owned());
        let actions = actions.collect();
        let filters: HashMap<&str, Vec<String>> = [("type", types), ("event", actions)].into();
        let from = format!("{}.{:09}", since.div_euclid(NANOS), since.rem_euclid(NANOS));
        let options = EventsOptionsBuilder::default().since(&from).filters(&filters).build();
        let mut events = std::pin::pin!(self.engine.events(Some(options)));
        while let Some(event) = events.next().await {
            let event = event.map_err(|error| Error::docker("follow events", error))?;
            let at = event.time_nano.unwrap_or(0);
            // The engine repeats the last one that was seen.
            if at <= *since {
                continue;
            }
            *since = at;
            if event.typ.as_ref().is_some_and(|kind| kind.as_ref() == IMAGE) {
                self.image_names.changed();
            } else {
                self.containers_changed();
                self.handle(event).await;
            }
        }
        Ok(())
    }

    /// Takes up the logs of containers that were started before this program or ended without it.
    async fn resume_logs(&self) {
        match (self.list(Kind::Container, &[]).await, self.info().await) {
            (Ok(containers), Ok(info)) => self.logs.resume(containers, &info.root_dir).await,
            (Err(error), _) | (_, Err(error)) => {
                tracing::warn!("logs of containers are not taken up: {error}");
            }
        }
    }

    async fn handle(&self, event: EventMessage) {
        let Some(mut event) = Event::new(event) else { return };
        let id = &event.message.container_id;
        match event.message.container_event_type() {
            ContainerEventType::ContainerStartedEvent => drop(self.created.start(id)),
            ContainerEventType::ContainerStoppedEvent => self.logs.ended(id),
            ContainerEventType::ContainerDeletedEvent => self.created.remove(id),
            ContainerEventType::ContainerCreatedEvent => {}
        }
        if !self.events.has_receivers() {
            return;
        }
        if !self.settings.event_statuses {
            event.message.pod_sandbox_status = Some(PodSandboxStatus {
                id: event.sandbox,
                metadata: Some(event.pod),
                ..PodSandboxStatus::default()
            });
        } else if let Err(error) = self.complete(&mut event).await {
            tracing::debug!("event of {}: {error}", event.message.container_id);
        }
        self.events.send(event.message);
    }

    /// Adds how the sandbox and its containers stand.
    async fn complete(&self, event: &mut Event) -> Result<()> {
        let deleted =
            event.message.container_event_type() == ContainerEventType::ContainerDeletedEvent;
        if deleted && event.message.container_id == event.sandbox {
            return Ok(());
        }
        match self.sandbox_status(&event.sandbox).await {
            Ok((status, _)) => event.message.pod_sandbox_status = Some(status),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
        for container in self.containers_of(&event.sandbox).await? {
            match self.container_status(&container.id.unwrap_or_default()).await {
                Ok((status, _)) => event.message.containers_statuses.push(status),
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

const NANOS: i64 = 1_000_000_000;
const IMAGE: &str = "image";
const CONTAINER_ACTIONS: &[&str] = &["create", "start", "die", "destroy"];
/// Those that change what images there are, and what they are called.
const IMAGE_ACTIONS: &[&str] = &["pull", "load", "import", "tag", "untag", "delete"];

/// An event that is of Kubernetes.
#[derive(Debug, PartialEq)]
struct Event {
    message: ContainerEventResponse,
    sandbox: String,
    /// The sandbox's metadata. The attempt is that of what the event is about.
    pod: PodSandboxMetadata,
}

impl Event {
    /// `None` for events of no interest, and of what is somebody else's.
    fn new(event: EventMessage) -> Option<Self> {
        let kind = match event.action.as_deref()? {
            "create" => ContainerEventType::ContainerCreatedEvent,
            "start" => ContainerEventType::ContainerStartedEvent,
            "die" => ContainerEventType::ContainerStoppedEvent,
            "destroy" => ContainerEventType::ContainerDeletedEvent,
            _ => return None,
        };
        let actor = event.actor?;
        let container_id = actor.id?;
        let attributes = actor.attributes?;
        let sandbox = match Kind::of(&attributes)? {
            Kind::Sandbox => container_id.clone(),
            Kind::Container => attributes.get(labels::SANDBOX)?.clone(),
        };
        let pod = names::parse_sandbox(attributes.get("name")?)?;
        let message = ContainerEventResponse {
            container_id,
            container_event_type: kind.into(),
            created_at: event.time_nano.unwrap_or(0),
            pod_sandbox_status: None,
            containers_statuses: Vec::new(),
        };
        Some(Self { message, sandbox, pod })
    }
}

#[cfg(test)]
mod tests {
    use bollard::models::EventActor;

    use super::*;

    fn event(action: &str, labels: &[(&str, &str)]) -> EventMessage {
        let name = ("name", "k8s_c_web_prod_1b3c_2");
        let labels = labels.iter().chain([&name]);
        let labels = labels.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        EventMessage {
            action: Some(action.to_owned()),
            actor: Some(EventActor { id: Some("c1".into()), attributes: Some(labels.collect()) }),
            time_nano: Some(5),
            ..EventMessage::default()
        }
    }

    #[test]
    fn events_of_others_are_passed_over() {
        let container = [(labels::TYPE, "container"), (labels::SANDBOX, "s1")];
        let sandbox = [(labels::TYPE, "podsandbox")];
        let found = |event| {
            Event::new(event).map(|event| (event.message.container_event_type(), event.sandbox))
        };
        let cases = [
            (event("create", &container), Some((ContainerEventType::ContainerCreatedEvent, "s1"))),
            (event("start", &sandbox), Some((ContainerEventType::ContainerStartedEvent, "c1"))),
            (event("die", &container), Some((ContainerEventType::ContainerStoppedEvent, "s1"))),
            (event("destroy", &sandbox), Some((ContainerEventType::ContainerDeletedEvent, "c1"))),
            (event("exec_die", &container), None),
            (event("die", &[]), None),
            (event("die", &[(labels::TYPE, "container")]), None),
            (EventMessage::default(), None),
        ];
        for (event, expected) in cases {
            assert_eq!(found(event), expected.map(|(kind, id)| (kind, id.to_owned())));
        }
        let mut unnamed = event("die", &sandbox);
        unnamed.actor.as_mut().unwrap().attributes.as_mut().unwrap().remove("name");
        assert_eq!(found(unnamed), None);
    }

    #[test]
    fn events_say_whose_they_are() {
        let container = [(labels::TYPE, "container"), (labels::SANDBOX, "s1")];
        let pod = Event::new(event("die", &container)).unwrap().pod;
        assert_eq!((&*pod.name, &*pod.namespace, &*pod.uid), ("web", "prod", "1b3c"));
    }
}
