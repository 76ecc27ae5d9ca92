//! Making an object.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Api, settle_namespace};
use crate::admission::attributes::{Attributes, Operation};
use crate::admission::chain::Rounds;
use crate::admission::creation::{begin_life, begin_own_life};
use crate::admission::services::Reservation;
use crate::admission::{self, certificates, namespaces, quota};
use crate::api_types::Resource;
use crate::kinds;
use crate::kinds::core;
use crate::managed::{self, Conversions};
use crate::object;
use crate::offload;
use crate::schema::value::size;
use crate::status::StatusError;
use crate::user::User;

/// Metadata that admission cannot change.
const IDENTITY: [&str; 5] = ["name", "namespace", "uid", "creationTimestamp", "generateName"];
/// How many generated names are tried.
const NAME_ATTEMPTS: usize = 8;

impl Api {
    /// Makes an object from a body that conforms to its type. Without a manager, those of its fields are
    /// recorded in it. Returns it as it was stored, and warnings for the client.
    pub(crate) async fn create_for(
        &self,
        user: &User,
        resource: &'static Resource,
        namespace: &str,
        mut object: Value,
        manager: Option<&str>,
        dry_run: bool,
    ) -> Result<(Value, Vec<String>), StatusError> {
        if resource.definition().is_some_and(|definition| definition.is_terminating) {
            return Err(StatusError::terminating_definition(resource));
        }
        settle_namespace(resource, &mut object, namespace)?;
        if object::name(&object).is_empty() && kinds::strategy(resource).names_itself {
            let name = object::new_uid().map_err(StatusError::internal)?;
            object::metadata_mut(&mut object).insert("name".into(), name.into());
        }
        let base = object["metadata"]["generateName"].as_str().unwrap_or_default().to_owned();
        if !object::name(&object).is_empty() || base.is_empty() {
            return self.create_named(user, resource, namespace, object, manager, dry_run).await;
        }
        let mut taken = String::new();
        for _ in 0..NAME_ATTEMPTS {
            let name = object::generated_name(&base).map_err(StatusError::internal)?;
            let mut named = object.clone();
            object::metadata_mut(&mut named).insert("name".into(), name.as_str().into());
            match self.create_named(user, resource, namespace, named, manager, dry_run).await {
                Err(error) if error.reason == "AlreadyExists" => taken = name,
                result => return result,
            }
        }
        Err(StatusError::generate_name_conflict(resource, &taken))
    }

    async fn create_named(
        &self,
        user: &User,
        resource: &'static Resource,
        namespace: &str,
        mut object: Value,
        manager: Option<&str>,
        dry_run: bool,
    ) -> Result<(Value, Vec<String>), StatusError> {
        let name = object::name(&object).to_owned();
        namespaces::admit_create(&self.registry, resource, namespace, &name).await?;
        let length = size(&object);
        offload::run(length, || kinds::apply_defaults(resource, &mut object));
        if let Some(manager) = manager {
            self.record_new(resource, manager, &mut object).await?;
        }
        offload::run(length, || begin_life(resource, &mut object))?;
        kinds::drop_disabled(resource, &self.gates, &mut object);
        let key = (namespace, name.as_str());
        let attributes = Attributes::new(Operation::Create, user, resource, key, dry_run);
        let mut said = Vec::new();
        self.mutate_new(&attributes, resource, &mut object, &mut said).await?;
        self.services.catch_up(&self.registry, resource).await;
        let mut reservation =
            self.services.admit_create(&self.registry, resource, &mut object, dry_run).await?;
        let made =
            self.create_admitted(&attributes, resource, object, reservation.as_mut(), said).await;
        if let Some(reservation) = reservation {
            let stored = made.as_ref().map(|(object, _)| Some(object));
            reservation.end(&self.registry, stored).await;
        }
        made
    }

    /// Checks a new object that is complete, and stores it.
    async fn create_admitted(
        &self,
        attributes: &Attributes<'_>,
        resource: &'static Resource,
        mut object: Value,
        reservation: Option<&mut Reservation<'_>>,
        mut said: Vec<String>,
    ) -> Result<(Value, Vec<String>), StatusError> {
        let (user, dry_run) = (attributes.user, attributes.dry_run);
        let (namespace, name) = (attributes.namespace, attributes.name);
        let length = size(&object);
        offload::run(length, || kinds::validate_create(resource, &object))?;
        if !object::resource_version(&object).is_empty() {
            if !dry_run {
                let why = "resourceVersion should not be set on objects to be created";
                return Err(StatusError::internal_plain(why));
            }
            object::metadata_mut(&mut object).remove("resourceVersion");
        }
        self.settle_rights(user, resource).await;
        certificates::admit_attest(&self.authorizer, user, resource, &object)?;
        self.authorizer.admit_grant(user, resource, &object, None)?;
        let mut warnings =
            admission::validate_create(&self.registry, &self.pod_security, user, resource, &object)
                .await?;
        self.event_limits.admit(attributes, &object, Instant::now())?;
        warnings.extend((kinds::strategy(resource).warnings)(&object, None));
        warnings.append(&mut said);
        self.chain.validate(&self.registry, attributes, Some(&object), None, &mut warnings).await?;
        let mut charge = quota::charge(
            &self.registry,
            &self.limited_resources,
            resource,
            namespace,
            &object,
            dry_run,
        )
        .await?;
        if dry_run {
            return match self.registry.find(resource, namespace, name).await? {
                Some(_) => Err(StatusError::already_exists(resource, name)),
                None => Ok((object, warnings)),
            };
        }
        if let Some(reservation) = reservation {
            reservation.begin();
        }
        let created = self.registry.create(resource, object, self.ttl(resource)).await;
        if created.is_err() {
            charge.release(&self.registry).await;
        }
        Ok((created?, warnings))
    }

    /// Records the manager of a new object.
    async fn record_new(
        &self,
        resource: &Resource,
        manager: &str,
        object: &mut Value,
    ) -> Result<(), StatusError> {
        let conversions = Conversions::default();
        loop {
            let given = object["metadata"].get("managedFields").cloned();
            offload::run(size(object), || {
                managed::record_create(resource, manager, object, &conversions);
            });
            if !self.resolve(resource, &conversions).await? {
                return Ok(());
            }
            let metadata = object::metadata_mut(object);
            match given {
                Some(given) => drop(metadata.insert("managedFields".into(), given)),
                None => drop(metadata.remove("managedFields")),
            }
        }
    }

    /// The mutating part of admission: this server's plugins, then what the cluster configures.
    async fn mutate_new(
        &self,
        attributes: &Attributes<'_>,
        resource: &'static Resource,
        object: &mut Value,
        warnings: &mut Vec<String>,
    ) -> Result<(), StatusError> {
        self.chain.catch_up(&self.registry).await;
        let mut rounds = Rounds::default();
        loop {
            certificates::stamp(resource, attributes.user, object);
            certificates::admit_create(resource, object)?;
            admission::mutate_create(&self.registry, attributes.user, resource, object).await?;
            let identity = object["metadata"].clone();
            let mutated = self
                .chain
                .mutate(&self.registry, attributes, object, None, &mut rounds, warnings)
                .await?;
            if mutated.changed {
                kinds::prepare_create(resource, object);
                object::keep(object, &identity, &IDENTITY);
            }
            if !mutated.again {
                return Ok(());
            }
        }
    }

    /// Makes a service of the cluster's own, at an address that no other service can have, unless one of that
    /// name exists. Other servers may do the same at the same time.
    pub(crate) async fn ensure_service(&self, mut service: Value) -> Result<(), StatusError> {
        let resource = core("services")?;
        begin_own_life(resource, &mut service)?;
        self.services.admit_own(&self.registry, resource, &mut service).await?;
        match self.registry.create(resource, service, None).await {
            Err(error) if error.reason != "AlreadyExists" => Err(error),
            _ => Ok(()),
        }
    }

    /// Makes an object of the cluster's own unless one of that name exists.
    pub(crate) async fn ensure(
        &self,
        resource: &Resource,
        object: Value,
    ) -> Result<(), StatusError> {
        self.ensure_for(resource, object, None).await
    }

    /// The same for an object that goes by itself after that time.
    pub(crate) async fn ensure_for(
        &self,
        resource: &Resource,
        mut object: Value,
        ttl: Option<Duration>,
    ) -> Result<(), StatusError> {
        begin_own_life(resource, &mut object)?;
        match self.registry.create(resource, object, ttl).await {
            Err(error) if error.reason != "AlreadyExists" => Err(error),
            _ => Ok(()),
        }
    }
}
