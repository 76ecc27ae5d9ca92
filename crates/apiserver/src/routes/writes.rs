//! `create`, `update`, `patch`, `delete`, `deletecollection` and the sub-resources that write.

use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, USER_AGENT};
use serde_json::{Value, json};

use super::body::BodyText;
use super::respond::{self, Answer, Result};
use super::{Call, Router, limits, lists};
use crate::admission::attributes::Operation;
use crate::api_types::{Gvk, Subresource};
use crate::audit;
use crate::kinds::{core, strategy};
use crate::managed;
use crate::object;
use crate::operations::{Change, DeleteOptions, UpdateRequest, check_name, check_namespace, scale};
use crate::patch::{self, PatchKind};
use crate::registry::Written;
use crate::schema::value::size;
use crate::schema::{self, FieldValidation};
use crate::status::StatusError;

/// How many times its JSON text a value takes in memory, about.
const VALUE_GROWTH: usize = 4;

impl Router {
    pub(super) async fn create(&self, mut call: Call<'_>) -> Result {
        let view = call.view()?;
        let body = self.body(&mut call).await?;
        let options = WriteOptions::read(&call)?;
        let (object, mut warnings) = read(&call, call.resource.gvk(), &body, &options)?;
        let WriteOptions { manager, dry_run, .. } = options;
        let (namespace, resource) = (call.namespace(), call.resource);
        let created = self
            .api
            .create_for(call.user, resource, namespace, object, Some(&manager), dry_run)
            .await;
        let (created, said) = match created {
            Ok(created) => created,
            Err(error) => return respond::refused(error, &warnings),
        };
        warnings.extend(said);
        Ok(with_warnings(view.answer(StatusCode::CREATED, &created), &warnings))
    }

    pub(super) async fn update(&self, mut call: Call<'_>) -> Result {
        let view = call.view()?;
        let body = self.body(&mut call).await?;
        let options = WriteOptions::read(&call)?;
        let (change, mut warnings) = change(&call, call.resource.gvk(), &body, &options)?;
        let WriteOptions { manager, dry_run, .. } = options;
        if let Change::Replace(object) = &change {
            // said before whether there is such an object
            check_name(object, &call.path.name)?;
        }
        let request = UpdateRequest {
            user: call.user,
            manager: &manager,
            resource: call.resource,
            subresource: &call.path.subresource,
            namespace: call.namespace(),
            name: &call.path.name,
            change,
            dry_run,
        };
        let (object, said) = match self.api.update(&request).await {
            Err(error) if error.code == 404 && creates_on_update(&request) => {
                let Change::Replace(object) = request.change else { return Err(error) };
                self.authorize(call.user, "create", call.line).await?;
                let (created, _) = self
                    .api
                    .create_for(
                        call.user,
                        call.resource,
                        call.namespace(),
                        object,
                        Some(&manager),
                        request.dry_run,
                    )
                    .await?;
                return Ok(with_warnings(view.answer(StatusCode::CREATED, &created), &warnings));
            }
            Err(error) if error.code == 404 && creates_by_apply(&request) => {
                self.authorize(call.user, "create", call.line).await?;
                match self.api.create_by_apply(&request).await? {
                    Some((created, said)) => {
                        warnings.extend(said);
                        let answer = view.answer(StatusCode::CREATED, &created);
                        return Ok(with_warnings(answer, &warnings));
                    }
                    None => self.api.update(&request).await?,
                }
            }
            Err(error) => return respond::refused(error, &warnings),
            Ok(updated) => updated,
        };
        warnings.extend(said);
        Ok(with_warnings(view.answer(StatusCode::OK, &object), &warnings))
    }

    pub(super) async fn delete(&self, mut call: Call<'_>) -> Result {
        let view = call.view()?;
        let options = self.delete_options(&mut call).await?;
        let (namespace, name) = (call.namespace(), &call.path.name);
        let (Written { object, deleted, .. }, warnings) =
            self.api.delete(call.user, call.resource, namespace, name, &options).await?;
        if !deleted || strategy(call.resource).returned_when_deleted {
            return Ok(with_warnings(view.answer(StatusCode::OK, &object), &warnings));
        }
        let mut details = json!({
            "name": call.path.name,
            "kind": call.resource.plural,
            "uid": object::uid(&object),
        });
        if !call.resource.group.is_empty() {
            details["group"] = call.resource.group.into();
        }
        Ok(with_warnings(respond::success(StatusCode::OK, Some(details)), &warnings))
    }

    pub(super) async fn delete_collection(&self, mut call: Call<'_>) -> Result {
        call.view()?;
        let options = self.delete_options(&mut call).await?;
        let request = lists::list_request(&call.line.query, call.resource, call.namespace())?;
        let mut items = Vec::new();
        let memory = self.limits.memory(&call.holder, 0)?;
        let permit = self.limits.list_permit(&call.holder, call.resource).await;
        let meta = self
            .api
            .registry
            .list(&request, |object| {
                if !memory.grow(VALUE_GROWTH * size(&object)) {
                    return Err(limits::too_many());
                }
                items.push(object);
                Ok(())
            })
            .await?;
        drop(permit);
        for item in &items {
            let result = self
                .api
                .delete(
                    call.user,
                    call.resource,
                    object::namespace(item),
                    object::name(item),
                    &options,
                )
                .await;
            match result {
                // It was deleted meanwhile.
                Err(error) if error.code == 404 => {}
                result => drop(result?),
            }
        }
        let list = json!({
            "kind": call.resource.list_kind(),
            "apiVersion": call.resource.gvk().api_version(),
            "metadata": meta.to_value(),
            "items": items,
        });
        Ok(respond::json(StatusCode::OK, &list))
    }

    pub(super) async fn scale(&self, mut call: Call<'_>, subresource: &Subresource) -> Result {
        let (namespace, name) = (call.namespace().to_owned(), call.path.name.clone());
        let view = call.view()?;
        if call.verb == "get" {
            if let Some(wanted) = lists::exact_version(&call.line.query)? {
                self.check_not_older(wanted).await?;
            }
            let controller = self.api.registry.get(call.resource, &namespace, &name).await?;
            return Ok(view.answer(StatusCode::OK, &scale::of(call.resource, &controller)));
        }
        let body = self.body(&mut call).await?;
        let options = WriteOptions::read(&call)?;
        let (change, mut warnings) = change(&call, subresource.gvk, &body, &options)?;
        if let Change::Replace(scale) = &change {
            check_name(scale, &name)?;
            check_namespace(scale, &namespace)?;
        }
        let WriteOptions { manager, dry_run, .. } = options;
        let key = (&*namespace, &*name);
        let scale = self
            .api
            .set_scale(call.user, call.resource, subresource.gvk, key, &change, &manager, dry_run)
            .await?;
        let (scale, said) = scale;
        warnings.extend(said);
        Ok(with_warnings(view.answer(StatusCode::OK, &scale), &warnings))
    }

    pub(super) async fn bind(&self, mut call: Call<'_>, subresource: &Subresource) -> Result {
        let body = self.body(&mut call).await?;
        let options = WriteOptions::read(&call)?;
        let dry_run = options.dry_run;
        let (binding, _) = read(&call, subresource.gvk, &body, &options)?;
        let (namespace, name) = (call.namespace(), &call.path.name);
        let (binding, warnings) = self.admit_created(&call, binding, dry_run).await?;
        self.api.bind(call.user, call.resource, namespace, name, &binding, dry_run).await?;
        Ok(with_warnings(respond::success(StatusCode::CREATED, None), &warnings))
    }

    /// POST of a Binding to the collection `bindings`: its name is the pod's.
    pub(super) async fn bind_named(&self, mut call: Call<'_>) -> Result {
        let body = self.body(&mut call).await?;
        let options = WriteOptions::read(&call)?;
        let dry_run = options.dry_run;
        let (binding, _) = read(&call, call.resource.gvk(), &body, &options)?;
        let name = object::name(&binding).to_owned();
        if name.is_empty()
            && binding["target"]["name"].as_str().is_some_and(|name| !name.is_empty())
        {
            return Err(StatusError::bad_request("Name parameter required."));
        }
        let pods = core("pods")?;
        let (binding, warnings) = self.admit_created(&call, binding, dry_run).await?;
        self.api.bind(call.user, pods, call.namespace(), &name, &binding, dry_run).await?;
        Ok(with_warnings(respond::success(StatusCode::CREATED, None), &warnings))
    }

    pub(super) async fn evict(&self, mut call: Call<'_>, subresource: &Subresource) -> Result {
        let body = self.body(&mut call).await?;
        let options = WriteOptions::read(&call)?;
        let (eviction, _) = read(&call, subresource.gvk, &body, &options)?;
        drop(body);
        // All budgets of the namespace are read, however many and large they are.
        let _permit = self.limits.large_work_permit(&call.holder).await;
        let dry_run = options.dry_run;
        let (namespace, name) = (call.namespace(), &call.path.name);
        let (eviction, warnings) = self.admit_created(&call, eviction, dry_run).await?;
        self.api.evict(call.user, call.resource, namespace, name, &eviction, dry_run).await?;
        Ok(with_warnings(respond::success(StatusCode::CREATED, None), &warnings))
    }

    /// Has webhooks and policies look at the body of a POST that stores no object. Returns it as they left
    /// it, and warnings for the client.
    pub(super) async fn admit_created(
        &self,
        call: &Call<'_>,
        body: Value,
        dry_run: bool,
    ) -> Result<(Value, Vec<String>)> {
        self.admit_body(call, Operation::Create, body, dry_run).await
    }

    /// The same of the options of a connection.
    pub(super) async fn admit_connect(&self, call: &Call<'_>, options: Value) -> Result<()> {
        self.admit_body(call, Operation::Connect, options, false).await.map(drop)
    }

    async fn admit_body(
        &self,
        call: &Call<'_>,
        operation: Operation,
        body: Value,
        dry_run: bool,
    ) -> Result<(Value, Vec<String>)> {
        let part = match call.subresource {
            Some(subresource) => (subresource.name, subresource.gvk),
            None => ("", call.resource.gvk()),
        };
        let name = match call.path.name.as_str() {
            "" => object::name(&body).to_owned(),
            name => name.to_owned(),
        };
        let key = (call.namespace(), name.as_str());
        self.api.admit_body(operation, call.user, call.resource, part, key, body, dry_run).await
    }

    pub(super) async fn body(&self, call: &mut Call<'_>) -> Result<BodyText> {
        let body =
            call.body.take().ok_or_else(|| StatusError::internal("the body was read twice"))?;
        let body = self.limits.read(&call.holder, &call.head.headers, body).await?;
        Ok(body.with_permit(&self.limits, &call.holder).await)
    }

    /// Options come in the body or, without one, in the query.
    async fn delete_options(&self, call: &mut Call<'_>) -> Result<DeleteOptions> {
        let body = self.body(call).await?;
        let query = &call.line.query;
        if !body.bytes.is_empty() {
            let (options, _) = body.read(Gvk::DELETE_OPTIONS, FieldValidation::Ignore)?;
            audit::request_object(&options);
            return DeleteOptions::from_value(&options);
        }
        let stages: Vec<&str> = query.all("dryRun").collect();
        DeleteOptions::from_value(&json!({
            "dryRun": stages,
            "gracePeriodSeconds": query.number::<i64>("gracePeriodSeconds")?,
            "preconditions": {"uid": query.get("uid")},
            "propagationPolicy": query.first("propagationPolicy"),
            "orphanDependents":
                query.has("orphanDependents").then(|| query.flag("orphanDependents")),
        }))
    }
}

/// The options of a create, an update or a patch.
pub(super) struct WriteOptions {
    /// The manager of what the request changes.
    pub(super) manager: String,
    pub(super) dry_run: bool,
    pub(super) validation: FieldValidation,
}

impl WriteOptions {
    /// Reads them from the query. 422 with all that is wrong with them.
    pub(super) fn read(call: &Call<'_>) -> Result<WriteOptions> {
        let query = &call.line.query;
        let apply = match is_apply(call) {
            true => managed::Apply::Yes,
            false => managed::Apply::No { has_force: call.verb == "patch" && query.has("force") },
        };
        let name = query.get("fieldManager").unwrap_or_default();
        let user_agent = call.header(USER_AGENT).unwrap_or_default();
        let manager = managed::manager(name, user_agent, apply);
        let (dry_run, validation) =
            (query.dry_run(), FieldValidation::parse(query.get("fieldValidation")));
        match (manager, dry_run, validation) {
            (Ok(manager), Ok(dry_run), Ok(validation)) => {
                Ok(WriteOptions { manager, dry_run, validation })
            }
            (manager, dry_run, validation) => {
                let mut causes = manager.err().unwrap_or_default();
                causes.extend(dry_run.err());
                causes.extend(validation.err());
                Err(StatusError::invalid_options(options_of(call), causes))
            }
        }
    }
}

/// Kinds that a PUT makes when they are absent, as long as it does not name a version.
fn creates_on_update(request: &UpdateRequest<'_>) -> bool {
    let is_such_kind = strategy(request.resource).created_on_update;
    let is_unversioned = matches!(&request.change, Change::Replace(object)
        if object::resource_version(object).is_empty() && object::name(object) == request.name);
    is_such_kind && is_unversioned && request.subresource.is_empty()
}

/// Whether the request is an apply of the whole object, which makes one that is absent.
fn creates_by_apply(request: &UpdateRequest<'_>) -> bool {
    matches!(request.change, Change::Apply { .. }) && request.subresource.is_empty()
}

/// The kind of the options that a write has.
fn options_of(call: &Call<'_>) -> &'static str {
    match call.verb {
        "patch" => "PatchOptions",
        "update" => "UpdateOptions",
        _ => "CreateOptions",
    }
}

/// The kind of a patch; 415 for none, in the words of upstream's route of built-in kinds.
fn patch_kind(call: &Call<'_>) -> Result<PatchKind> {
    PatchKind::of(call.header(CONTENT_TYPE)).map_err(|error| match call.resource.custom {
        None => StatusError::not_consumed(),
        Some(_) => error,
    })
}

fn is_apply(call: &Call<'_>) -> bool {
    let content_type = call.header(CONTENT_TYPE);
    call.verb == "patch" && schema::media_type(content_type) == patch::APPLY
}

fn read(
    call: &Call<'_>,
    gvk: Gvk,
    body: &BodyText,
    options: &WriteOptions,
) -> Result<(Value, Vec<String>)> {
    let read = body.read_of(call.resource, gvk, options.validation)?;
    audit::request_object(&read.0);
    Ok(read)
}

fn change<'a>(
    call: &Call<'_>,
    gvk: Gvk,
    body: &'a BodyText,
    options: &WriteOptions,
) -> Result<(Change<'a>, Vec<String>)> {
    if is_apply(call) {
        let decoded = managed::read(&body.bytes)?;
        audit::request_object(&decoded.value);
        let problem = managed::duplicates(&body.bytes, &decoded);
        let warnings = match (options.validation, problem) {
            (FieldValidation::Strict, Some(problem)) => {
                return Err(StatusError::bad_request(format!(
                    "error strict decoding YAML: {problem}"
                )));
            }
            (FieldValidation::Ignore, _) => Vec::new(),
            (_, problem) => problem.into_iter().collect(),
        };
        let force = call.line.query.has("force") && call.line.query.flag("force");
        return Ok((Change::Apply { object: decoded.value, force }, warnings));
    }
    if call.verb == "patch" {
        let kind = patch_kind(call)?;
        audit::request_patch(&body.bytes);
        return Ok((
            Change::Patch { kind, body: &body.bytes, validation: options.validation },
            Vec::new(),
        ));
    }
    let (object, warnings) = read(call, gvk, body, options)?;
    Ok((Change::Replace(object), warnings))
}

fn with_warnings(mut answer: Answer, warnings: &[String]) -> Answer {
    respond::warn(&mut answer, warnings);
    answer
}
