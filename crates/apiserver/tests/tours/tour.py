"""A tour of the API with Python's client of Kubernetes (PyPI: kubernetes): every verb over one object of every
kind, and what else the client offers. The client checks what it gets against its types.

    tour.py KUBECONFIG OBJECTS

OBJECTS is a file of YAML documents. All that fails is printed at the end, and the exit status is 1 then.
`tests/tours.rs` runs it. The server has to compact every second or two.
"""

import json
import re
import sys
import threading
import time
import traceback

import yaml
from kubernetes import client, config, dynamic, utils, watch
from kubernetes.client.exceptions import ApiException

NAMESPACE = "default"
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

config.load_kube_config(sys.argv[1])
core = client.CoreV1Api()
apps = client.AppsV1Api()
failures = []
passed = 0


class Failed(Exception):
    """What a check has found."""


def check(holds, what):
    if not holds:
        raise Failed(what)


def step(name, work, *arguments):
    """Does one thing; what goes wrong is kept, and the tour goes on."""
    global passed
    try:
        result = work(*arguments)
        passed += 1
        return result
    except ApiException as error:
        reason = f"{error.status} {error.reason}: {str(error.body)[:600]}"
    except Failed as error:
        reason = str(error)
    except Exception:
        reason = traceback.format_exc()[-1500:]
    failures.append(f"{name}: {reason}")
    return None


def refused(status, reason, work, *arguments, **named):
    """Must end with an error that has this status and, in its body, this reason."""
    try:
        work(*arguments, **named)
    except ApiException as error:
        body = json.loads(error.body)
        check(error.status == status, f"status {error.status}, not {status}: {body}")
        check(body["kind"] == "Status" and body["apiVersion"] == "v1", body)
        check(body["reason"] == reason, f"reason {body.get('reason')}, not {reason}: {body}")
        check(body["code"] == status and body["status"] == "Failure", body)
        return body
    raise Failed(f"not refused with {status} {reason}")


def unless_changed(work):
    """Again while somebody else changes the same: the server writes conditions of some kinds."""
    for _ in range(20):
        try:
            return work()
        except ApiException as error:
            if error.status != 409:
                raise
    return work()


# one object of every kind


def snake(kind):
    text = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", kind)
    return re.sub("([a-z0-9])([A-Z])", r"\1_\2", text).lower()


def api_of(api_version):
    group, _, version = api_version.rpartition("/")
    group = (group or "core").replace(".k8s.io", "")
    group = "".join(part.capitalize() for part in re.split(r"[.-]", group))
    name = f"{group}{version.capitalize()}Api"
    return getattr(client, name)() if hasattr(client, name) else None


class Kind:
    """The client's methods for a kind."""

    def __init__(self, document):
        self.document = document
        self.api = api_of(document["apiVersion"])
        self.name = document.get("metadata", {}).get("name", "")
        self.suffix = snake(document["kind"])
        self.is_namespaced = self.find("create", "namespaced_", "") is not None

    def find(self, verb, scope, below):
        name = f"{verb}_{scope}{self.suffix}{below}"
        return getattr(self.api, name, None)

    def method(self, verb, below=""):
        """A method without the arguments that say where the object is; `None` where there is none."""
        found = self.find(verb, "namespaced_" if self.is_namespaced else "", below)
        if found is None:
            return None
        named = verb in ("read", "patch", "replace", "delete")

        def call(*arguments, **options):
            place = ([self.name] if named else []) + ([NAMESPACE] if self.is_namespaced else [])
            return found(*place, *arguments, **options)

        return call


def tour_kind(document):
    kind = Kind(document)
    if kind.api is None or not kind.name:
        return
    title = f"{document['apiVersion']} {document['kind']}"
    create, read = kind.method("create"), kind.method("read")
    if create is None or read is None:
        return

    def at(what, work, *arguments):
        return step(f"{title}: {what}", work, *arguments)

    dry = at("create (dry run)", lambda: create(document, dry_run="All", field_validation="Strict"))
    if dry is None:
        return
    at("nothing is stored by a dry run", lambda: refused(404, "NotFound", read))
    created = at("create", lambda: create(document, field_manager="tour"))
    if created is None:
        return
    # an address that a service asks for is looked at first
    has_address = document.get("spec", {}).get("clusterIP", "None") != "None"
    again = (422, "Invalid") if has_address else (409, "AlreadyExists")
    at("create again", lambda: refused(*again, create, document))

    def same():
        found = read()
        check(found.metadata.uid == created.metadata.uid, "another UID")
        check(found.metadata.name == kind.name, "another name")

    at("read", same)
    listing = kind.method("list")
    selector = f"metadata.name={kind.name}"

    def listed():
        found = listing(limit=500)
        check(kind.name in [item.metadata.name for item in found.items], "it is not listed")
        check(found.metadata.resource_version, "no resourceVersion")
        one = listing(field_selector=selector)
        check([item.metadata.name for item in one.items] == [kind.name], "the selector")
        return one

    found = at("list", listed)
    at("watch", watched, kind, "0", "ADDED")
    seen = found.metadata.resource_version if found else "0"
    patch = kind.method("patch")

    def labelled(key, body, content_type, **options):
        changed = patch(body, _content_type=content_type, **options)
        check(changed.metadata.labels.get(key) == "yes", f"labels {changed.metadata.labels}")

    def labels(key):
        return {"metadata": {"labels": {key: "yes"}}}

    if patch:
        at("merge patch", lambda: labelled("merged", labels("merged"), MERGE_PATCH))
        at("strategic patch", lambda: labelled("strategic", labels("strategic"), STRATEGIC_PATCH))
        operations = [{"op": "add", "path": "/metadata/labels/added", "value": "yes"}]
        at("JSON patch", lambda: labelled("added", operations, JSON_PATCH))
        wrong = [{"op": "test", "path": "/metadata/name", "value": "other"}]
        at(
            "JSON patch whose test fails",
            lambda: refused(422, "Invalid", patch, wrong, _content_type=JSON_PATCH),
        )
        applied = {
            "apiVersion": document["apiVersion"],
            "kind": document["kind"],
            **labels("applied"),
        }
        applied["metadata"]["name"] = kind.name
        at(
            "apply",
            lambda: labelled("applied", applied, APPLY_PATCH, field_manager="other", force=True),
        )
        at("watch from a revision", watched, kind, seen, "MODIFIED")

    for below in ("_status", "_scale", "_approval", "_ephemeralcontainers", "_resize"):
        at(f"subresource {below[1:]}", tour_subresource, kind, below)

    replace = kind.method("replace")
    if replace:

        def replaced():
            def annotated():
                own = read()
                own.metadata.annotations = {**(own.metadata.annotations or {}), "tour": "replaced"}
                return replace(own)

            stale = read()
            changed = unless_changed(annotated)
            check(changed.metadata.annotations["tour"] == "replaced", "the annotation")
            stale.metadata.annotations = {"tour": "stale"}
            body = refused(409, "Conflict", replace, stale)
            check("the object has been modified" in body["message"], body)

        at("replace", replaced)

    delete = kind.method("delete")
    if delete is None:
        return
    at("delete (dry run)", lambda: (delete(dry_run="All"), read()))
    at(
        "delete with another UID",
        lambda: refused(
            409, "Conflict", delete, body={"preconditions": {"uid": "00000000-0000-0000-0000-000000000000"}}
        ),
    )
    clear(kind)
    at("delete", lambda: delete(body={"gracePeriodSeconds": 0}))

    def gone():
        finalize(kind)
        refused(404, "NotFound", read)

    at("it is gone", gone)
    collection = kind.find("delete_collection", "namespaced_" if kind.is_namespaced else "", "")
    if collection is None:
        return

    def emptied():
        labelled_document = json.loads(json.dumps(document, default=str))
        labelled_document["metadata"].setdefault("labels", {})["tour"] = "collection"
        create(labelled_document)
        clear(kind)
        place = [NAMESPACE] if kind.is_namespaced else []
        collection(*place, label_selector="tour=collection", grace_period_seconds=0)
        finalize(kind)
        refused(404, "NotFound", read)

    at("delete collection", emptied)


def clear(kind):
    """Removes finalizers that were given, so that a deletion ends."""
    patch = kind.method("patch")
    if patch:
        patch({"metadata": {"finalizers": None}}, _content_type=MERGE_PATCH)


def finalize(kind):
    """Does what a controller does for what is still there."""
    try:
        found = kind.method("read")()
    except ApiException:
        return
    if found.metadata.deletion_timestamp is None:
        return
    if found.kind == "Namespace" or kind.suffix == "namespace":
        core.replace_namespace_finalize(kind.name, {"metadata": {"name": kind.name}, "spec": {"finalizers": []}})
        return
    try:
        clear(kind)
    except ApiException as error:
        # the server itself may have ended it meanwhile
        if error.status != 404:
            raise


def watched(kind, revision, expected):
    if kind.suffix == "resource_claim":
        return  # the client does not find its own class for the events
    listing = kind.find("list", "namespaced_" if kind.is_namespaced else "", "")
    place = [NAMESPACE] if kind.is_namespaced else []
    events = watch.Watch().stream(
        listing,
        *place,
        resource_version=revision,
        field_selector=f"metadata.name={kind.name}",
        timeout_seconds=5,
    )
    for event in events:
        if event["type"] == expected:
            check(event["object"].metadata.name == kind.name, "another object")
            return
    raise Failed(f"no event {expected}")


def tour_subresource(kind, below):
    read, patch, replace = (kind.method(verb, below) for verb in ("read", "patch", "replace"))
    if read is None:
        return
    found = read()
    check(found.metadata.name == kind.name, "another name")
    if patch and below not in ("_ephemeralcontainers", "_resize"):
        patch({"metadata": {"annotations": {"tour": "sub"}}}, _content_type=MERGE_PATCH)
    if replace:
        unless_changed(lambda: replace(read()))
    if below == "_scale":
        scaled = patch({"spec": {"replicas": 3}}, _content_type=MERGE_PATCH)
        check(scaled.spec.replicas == 3, f"{scaled.spec.replicas} replicas")


# lists of everything, and discovery


def tour_discovery():
    check(client.VersionApi().get_code().git_version.startswith("v1."), "version")
    check("v1" in client.CoreApi().get_api_versions().versions, "versions")
    groups = client.ApisApi().get_api_versions().groups
    check("apps" in [group.name for group in groups], "groups")
    check(client.WellKnownApi().get_service_account_issuer_open_id_configuration(), "issuer")


def tour_lists():
    """Every list that the client knows and the server serves."""
    for name in dir(client):
        if not re.fullmatch(r"\w+V\d\w*Api", name):
            continue
        api = getattr(client, name)()
        if not hasattr(api, "get_api_resources"):
            continue
        try:
            resources = api.get_api_resources().resources
        except ApiException as error:
            if error.status != 404:
                failures.append(f"{name}: {error}")
            continue
        known = {snake(resource.kind) for resource in resources}
        group = getattr(client, re.sub(r"V\d\w*Api$", "Api", name), None)
        if group and hasattr(group(), "get_api_group"):
            step(f"{name}: group", group().get_api_group)
        for method in dir(api):
            found = re.fullmatch(r"list_(namespaced_)?(\w+?)(_for_all_namespaces)?", method)
            if found is None or method.endswith("_with_http_info") or method.endswith("_without_preload_content"):
                continue
            if found[2] not in known:
                continue
            place = [NAMESPACE] if found[1] else []
            step(f"{name}.{method}", lambda: getattr(api, method)(*place, limit=2))


# pages, watches, informers


def config_map(name, **data):
    return {"metadata": {"name": name, "labels": {"tour": "pages"}}, "data": data}


def tour_pages():
    for i in range(7):
        core.create_namespaced_config_map(NAMESPACE, config_map(f"page-{i}"))
    names, token = [], None
    while True:
        page = core.list_namespaced_config_map(NAMESPACE, limit=3, label_selector="tour=pages", _continue=token)
        names += [item.metadata.name for item in page.items]
        token = page.metadata._continue
        if not token:
            break
    check(names == [f"page-{i}" for i in range(7)], names)
    body = refused(400, "BadRequest", core.list_namespaced_config_map, NAMESPACE, limit=1, _continue="nonsense")
    check("continue" in body["message"], body)


def tour_compaction():
    """A token and a revision that are compacted away."""
    page = core.list_namespaced_config_map(NAMESPACE, limit=2, label_selector="tour=pages")
    token, revision = page.metadata._continue, page.metadata.resource_version
    deadline = time.time() + 30
    body = None
    while body is None and time.time() < deadline:
        core.patch_namespaced_config_map("page-0", NAMESPACE, {"data": {"at": str(time.time())}})
        time.sleep(1)
        try:
            core.list_namespaced_config_map(NAMESPACE, limit=2, label_selector="tour=pages", _continue=token)
        except ApiException as error:
            check(error.status == 410, error)
            body = json.loads(error.body)
    check(body and body["reason"] == "Expired", body)
    rest = core.list_namespaced_config_map(
        NAMESPACE, limit=9, label_selector="tour=pages", _continue=body["metadata"]["continue"]
    )
    check([item.metadata.name for item in rest.items] == [f"page-{i}" for i in range(2, 7)], "the rest")
    listing = core.list_namespaced_config_map
    refused(410, "Expired", listing, NAMESPACE, resource_version=revision, resource_version_match="Exact", limit=1)
    try:
        for event in watch.Watch().stream(listing, NAMESPACE, resource_version=revision, timeout_seconds=5):
            raise Failed(f"an event {event['type']} since a revision that is gone")
        raise Failed("the watch is not refused")
    except ApiException as error:
        check(error.status == 410, error)


def tour_watch():
    """Events of one object's life, with bookmarks."""
    seen = []
    listing = core.list_namespaced_config_map
    started = listing(NAMESPACE).metadata.resource_version

    def work():
        core.create_namespaced_config_map(NAMESPACE, {"metadata": {"name": "watched"}})
        core.patch_namespaced_config_map("watched", NAMESPACE, {"data": {"a": "b"}})
        core.delete_namespaced_config_map("watched", NAMESPACE)

    thread = threading.Thread(target=work)
    thread.start()
    stream = watch.Watch()
    for event in stream.stream(listing, NAMESPACE, resource_version=started, timeout_seconds=10):
        if event["object"].metadata.name == "watched":
            seen.append(event["type"])
        if len(seen) == 3:
            stream.stop()
    thread.join()
    check(seen == ["ADDED", "MODIFIED", "DELETED"], seen)
    kinds = set()
    stream = watch.Watch()
    for event in stream.stream(
        listing,
        NAMESPACE,
        send_initial_events=True,
        resource_version_match="NotOlderThan",
        allow_watch_bookmarks=True,
        timeout_seconds=5,
    ):
        kinds.add(event["type"])
        if event["type"] == "BOOKMARK":
            marks = event["raw_object"]["metadata"]["annotations"]
            check(marks == {"k8s.io/initial-events-end": "true"}, marks)
            stream.stop()
    check(kinds == {"ADDED", "BOOKMARK"}, kinds)


def tour_informer():
    from kubernetes.informer import SharedInformer

    seen = []
    informer = SharedInformer(core.list_namespaced_config_map, namespace=NAMESPACE)
    for event in ("ADDED", "MODIFIED", "DELETED"):
        informer.add_event_handler(event, lambda found, event=event: seen.append((event, found.metadata.name)))
    informer.start()
    try:
        core.create_namespaced_config_map(NAMESPACE, {"metadata": {"name": "informed"}})
        expect(lambda: ("ADDED", "informed") in seen)
        core.patch_namespaced_config_map("informed", NAMESPACE, {"data": {"a": "b"}})
        expect(lambda: ("MODIFIED", "informed") in seen)
        core.delete_namespaced_config_map("informed", NAMESPACE)
        expect(lambda: ("DELETED", "informed") in seen)
    finally:
        informer.stop()


def expect(holds):
    deadline = time.time() + 20
    while not holds():
        check(time.time() < deadline, "it does not happen")
        time.sleep(0.05)


# what is special to some kinds


def pod(name, **spec):
    spec = {"containers": [{"name": "main", "image": "busybox"}], **spec}
    return {"metadata": {"name": name, "labels": {"app": name}}, "spec": spec}


def tour_pods():
    core.create_node({"metadata": {"name": "tour-node"}})
    core.create_namespaced_pod(NAMESPACE, pod("bound"))
    # the answer is a Status, and the client expects a Binding
    target = client.V1Binding(
        metadata=client.V1ObjectMeta(name="bound"), target=client.V1ObjectReference(kind="Node", name="tour-node")
    )
    core.create_namespaced_pod_binding("bound", NAMESPACE, target, _preload_content=False)
    check(core.read_namespaced_pod("bound", NAMESPACE).spec.node_name == "tour-node", "it is not bound")
    status = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    running = core.patch_namespaced_pod_status("bound", NAMESPACE, status)
    check(running.status.phase == "Running", running.status.phase)
    debug = {"spec": {"ephemeralContainers": [{"name": "debug", "image": "busybox"}]}}
    changed = core.patch_namespaced_pod_ephemeralcontainers("bound", NAMESPACE, debug)
    check(changed.spec.ephemeral_containers[0].name == "debug", "no ephemeral container")
    sized = {"spec": {"containers": [{"name": "main", "resources": {}}]}}
    core.patch_namespaced_pod_resize("bound", NAMESPACE, sized)
    eviction = client.V1Eviction(metadata=client.V1ObjectMeta(name="bound", namespace=NAMESPACE))
    core.create_namespaced_pod_eviction("bound", NAMESPACE, eviction, dry_run="All")
    client.PolicyV1Api().create_namespaced_pod_disruption_budget(
        NAMESPACE,
        {"metadata": {"name": "bound"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "bound"}}}},
    )
    body = refused(429, "TooManyRequests", core.create_namespaced_pod_eviction, "bound", NAMESPACE, eviction)
    check(body["details"]["causes"][0]["reason"] == "DisruptionBudget", body)
    client.PolicyV1Api().delete_namespaced_pod_disruption_budget("bound", NAMESPACE)
    core.create_namespaced_pod_eviction("bound", NAMESPACE, eviction)
    check(core.read_namespaced_pod("bound", NAMESPACE).metadata.deletion_timestamp, "it is not evicted")
    core.delete_namespaced_pod("bound", NAMESPACE, grace_period_seconds=0)
    refused(404, "NotFound", core.read_namespaced_pod, "bound", NAMESPACE)
    core.delete_node("tour-node")


def tour_errors():
    bad = pod("bad", containers=[{"name": "Bad Name", "image": "busybox"}])
    body = refused(422, "Invalid", core.create_namespaced_pod, NAMESPACE, bad)
    causes = body["details"]["causes"]
    check(causes[0]["field"] == "spec.containers[0].name", causes)
    check(causes[0]["reason"] == "FieldValueInvalid", causes)
    check(body["details"]["kind"] == "Pod" and body["details"]["name"] == "bad", body)
    refused(404, "NotFound", core.read_namespaced_pod, "absent", NAMESPACE)
    refused(404, "NotFound", core.create_namespaced_config_map, "nowhere", config_map("a"))
    unknown = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "unknown"}, "dat": {}}
    maps = dynamic.DynamicClient(client.ApiClient()).resources.get(api_version="v1", kind="ConfigMap")
    try:
        maps.create(body=unknown, namespace=NAMESPACE, query_params=[("fieldValidation", "Strict")])
        raise Failed("an unknown field is accepted")
    except dynamic.exceptions.BadRequestError as error:
        check(b'unknown field \\"dat\\"' in as_bytes(error.body), error.body)
    nobody = stranger()
    refused(403, "Forbidden", client.CoreV1Api(nobody).list_namespaced_pod, NAMESPACE)
    nobody.set_default_header("Authorization", "Bearer nonsense")
    refused(401, "Unauthorized", client.CoreV1Api(nobody).list_namespaced_pod, NAMESPACE)


def as_bytes(body):
    return body if isinstance(body, bytes) else body.encode()


def stranger():
    """A client without credentials."""
    known = client.ApiClient().configuration
    unknown = client.Configuration(host=known.host)
    unknown.ssl_ca_cert = known.ssl_ca_cert
    return client.ApiClient(unknown)


def tour_access():
    accounts = "tour-account"
    core.create_namespaced_service_account(NAMESPACE, {"metadata": {"name": accounts}})
    request = client.AuthenticationV1TokenRequest(
        spec=client.V1TokenRequestSpec(audiences=[], expiration_seconds=3600)
    )
    token = core.create_namespaced_service_account_token(accounts, NAMESPACE, request).status.token
    authentication = client.AuthenticationV1Api()
    review = authentication.create_token_review({"spec": {"token": token}})
    user = f"system:serviceaccount:{NAMESPACE}:{accounts}"
    check(review.status.authenticated and review.status.user.username == user, review.status)
    who = authentication.create_self_subject_review({})
    check("system:masters" in who.status.user_info.groups, who.status.user_info)
    authorization = client.AuthorizationV1Api()
    attributes = {"namespace": NAMESPACE, "verb": "list", "resource": "pods"}
    own = authorization.create_self_subject_access_review({"spec": {"resourceAttributes": attributes}})
    check(own.status.allowed, own.status)
    asked = {"spec": {"user": user, "resourceAttributes": attributes}}
    check(not authorization.create_subject_access_review(asked).status.allowed, "allowed too early")
    rbac = client.RbacAuthorizationV1Api()
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    rbac.create_namespaced_role(NAMESPACE, {"metadata": {"name": "lister"}, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": accounts, "namespace": NAMESPACE}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "lister"}
    binding = {"metadata": {"name": "lister"}, "subjects": [subject], "roleRef": role}
    rbac.create_namespaced_role_binding(NAMESPACE, binding)
    local = authorization.create_namespaced_local_subject_access_review
    asked["metadata"] = {"namespace": NAMESPACE}
    check(local(NAMESPACE, asked).status.allowed, "not allowed")
    rules = authorization.create_self_subject_rules_review({"spec": {"namespace": NAMESPACE}})
    check(rules.status.resource_rules, "no rules")
    account = stranger()
    account.set_default_header("Authorization", f"Bearer {token}")
    client.CoreV1Api(account).list_namespaced_pod(NAMESPACE)
    body = refused(403, "Forbidden", client.CoreV1Api(account).list_namespaced_secret, NAMESPACE)
    check(f'User "{user}" cannot list resource "secrets"' in body["message"], body)


def deployment(name):
    template = {"metadata": {"labels": {"app": name}}, "spec": pod(name)["spec"]}
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def tour_apply():
    """Server-side apply by two managers, by the dynamic client."""
    dynamic_client = dynamic.DynamicClient(client.ApiClient())
    deployments = dynamic_client.resources.get(api_version="apps/v1", kind="Deployment")
    body = deployment("applied")
    deployments.server_side_apply(body=body, namespace=NAMESPACE, field_manager="one")
    body["spec"]["replicas"] = 5
    try:
        deployments.server_side_apply(body=body, namespace=NAMESPACE, field_manager="two")
        raise Failed("no conflict")
    except dynamic.exceptions.ConflictError as error:
        status = json.loads(error.body)
        check(status["details"]["causes"][0]["reason"] == "FieldManagerConflict", status)
        check(status["details"]["causes"][0]["field"] == ".spec.replicas", status)
    changed = deployments.server_side_apply(
        body=body, namespace=NAMESPACE, field_manager="two", force_conflicts=True
    )
    check(changed.spec.replicas == 5, changed.spec.replicas)
    del body["spec"]["replicas"]
    changed = deployments.server_side_apply(body=body, namespace=NAMESPACE, field_manager="two")
    check(changed.spec.replicas == 1, "the default comes back")
    typed = apps.read_namespaced_deployment("applied", NAMESPACE)
    managers = {entry.manager for entry in typed.metadata.managed_fields}
    check({"one", "two"} <= managers, managers)
    deployments.delete(name="applied", namespace=NAMESPACE)


def definition():
    schema = {
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "required": ["size"],
                "properties": {
                    "size": {"type": "integer", "minimum": 1, "maximum": 9},
                    "color": {"type": "string", "default": "red"},
                },
                "x-kubernetes-validations": [{"rule": "self.size != 7", "message": "not seven"}],
            },
            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        },
    }
    scale = {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size"}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}, "scale": scale},
        "selectableFields": [{"jsonPath": ".spec.color"}],
    }
    names = {"plural": "toys", "singular": "toy", "kind": "Toy", "listKind": "ToyList", "shortNames": ["ty"]}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "toys.tour.example.com"},
        "spec": {"group": "tour.example.com", "scope": "Namespaced", "names": names, "versions": [version]},
    }


def toy(name, **spec):
    return {
        "apiVersion": "tour.example.com/v1",
        "kind": "Toy",
        "metadata": {"name": name},
        "spec": {"size": 2, **spec},
    }


def tour_custom():
    extensions = client.ApiextensionsV1Api()
    extensions.create_custom_resource_definition(definition())

    def established():
        found = extensions.read_custom_resource_definition("toys.tour.example.com")
        conditions = found.status.conditions or [] if found.status else []
        return any(one.type == "Established" and one.status == "True" for one in conditions)

    expect(established)
    api = client.CustomObjectsApi()
    place = ("tour.example.com", "v1", NAMESPACE, "toys")
    made = api.create_namespaced_custom_object(*place, toy("one"))
    check(made["spec"] == {"size": 2, "color": "red"}, made["spec"])
    body = refused(422, "Invalid", api.create_namespaced_custom_object, *place, toy("two", size=10))
    check(body["details"]["causes"][0]["field"] == "spec.size", body)
    body = refused(422, "Invalid", api.create_namespaced_custom_object, *place, toy("two", size=7))
    check("not seven" in body["message"], body)
    api.create_namespaced_custom_object(*place, toy("two", color="blue"))
    found = api.list_namespaced_custom_object(*place, field_selector="spec.color=blue")
    check([item["metadata"]["name"] for item in found["items"]] == ["two"], found)
    first = api.list_namespaced_custom_object(*place, limit=1)
    rest = api.list_namespaced_custom_object(*place, _continue=first["metadata"]["continue"])
    check(len(rest["items"]) == 1, rest)
    one = (*place, "one")
    api.patch_namespaced_custom_object(*one, {"spec": {"size": 3}})
    operations = [{"op": "replace", "path": "/spec/size", "value": 4}]
    api.patch_namespaced_custom_object(*one, operations, _content_type=JSON_PATCH)
    found = api.get_namespaced_custom_object(*one)
    check(found["spec"]["size"] == 4, found)
    api.replace_namespaced_custom_object(*one, {**found, "spec": {"size": 5}})
    api.patch_namespaced_custom_object_status(*one, {"status": {"size": 5, "any": ["x"]}})
    found = api.get_namespaced_custom_object_status(*one)
    check(found["status"]["any"] == ["x"] and found["spec"]["size"] == 5, found)
    scale = api.get_namespaced_custom_object_scale(*one)
    check(scale["kind"] == "Scale" and scale["spec"]["replicas"] == 5, scale)
    check(scale["status"]["replicas"] == 5, scale)
    api.patch_namespaced_custom_object_scale(*one, {"spec": {"replicas": 6}})
    check(api.get_namespaced_custom_object(*one)["spec"]["size"] == 6, "the scale is not written")
    events = watch.Watch().stream(api.list_namespaced_custom_object, *place, timeout_seconds=2)
    check({event["object"]["metadata"]["name"] for event in events} == {"one", "two"}, "the watch")

    dynamic_client = dynamic.DynamicClient(client.ApiClient())
    toys = dynamic_client.resources.get(api_version="tour.example.com/v1", kind="Toy")
    check(toys.get(name="one", namespace=NAMESPACE).spec.size == 6, "the dynamic client")
    check(toys.status.get(name="one", namespace=NAMESPACE).status.any == ["x"], "its status")
    applied = toys.server_side_apply(body=toy("three"), namespace=NAMESPACE, field_manager="tour")
    check(applied.spec.color == "red", applied)
    check(len(toys.get(namespace=NAMESPACE).items) == 3, "three toys")
    for event in toys.watch(namespace=NAMESPACE, timeout=1):
        check(event["object"].kind == "Toy", event)
    api.delete_namespaced_custom_object(*one)
    api.delete_collection_namespaced_custom_object(*place)
    check(api.list_namespaced_custom_object(*place)["items"] == [], "toys are left")
    extensions.delete_custom_resource_definition("toys.tour.example.com")
    expect(lambda: gone_definition(api, place))


def gone_definition(api, place):
    try:
        api.list_namespaced_custom_object(*place)
        return False
    except ApiException as error:
        return error.status == 404


def tour_yaml():
    """The client's own ways to create and apply files, twice."""
    documents = [deployment("from-yaml"), {"apiVersion": "v1", "kind": "ConfigMap", **config_map("from-yaml")}]
    utils.create_from_yaml(client.ApiClient(), yaml_objects=documents, namespace=NAMESPACE)
    try:
        utils.create_from_yaml(client.ApiClient(), yaml_objects=documents, namespace=NAMESPACE)
        raise Failed("created twice")
    except utils.FailToCreateError as error:
        check(all(one.status == 409 for one in error.api_exceptions), error)


def tour_leader_election():
    from kubernetes.leaderelection import electionconfig, leaderelection

    try:
        from kubernetes.leaderelection.resourcelock import leaselock
    except ImportError:
        return  # an older client has no leases

    leads = threading.Event()
    lock = leaselock.LeaseLock("leader", NAMESPACE, "me")
    options = electionconfig.Config(
        lock,
        lease_duration=15,
        renew_deadline=10,
        retry_period=1,
        onstarted_leading=leads.set,
        onstopped_leading=None,
    )
    threading.Thread(target=leaderelection.LeaderElection(options).run, daemon=True).start()
    check(leads.wait(20), "it does not lead")
    lease = client.CoordinationV1Api().read_namespaced_lease("leader", NAMESPACE)
    check(lease.spec.holder_identity == "me", lease.spec)


def main():
    tours = {name[5:]: work for name, work in globals().items() if name.startswith("tour_")}
    del tours["kind"], tours["subresource"]
    for name, work in tours.items():
        step(name, work)
    with open(sys.argv[2], encoding="utf-8") as file:
        for document in yaml.safe_load_all(file):
            step(f"{document['kind']} as a whole", tour_kind, document)
    for failure in failures:
        print(f"FAILED {failure}")
    print(f"{passed} passed, {len(failures)} failed")
    sys.exit(1 if failures else 0)


main()
