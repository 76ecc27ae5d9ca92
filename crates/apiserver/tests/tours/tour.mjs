// A tour of the API with JavaScript's client of Kubernetes (npm: @kubernetes/client-node): every verb over one
// object of every kind, and what else the client offers. The module is found by NODE_PATH.
//
//     node tour.mjs KUBECONFIG OBJECTS
//
// OBJECTS is a file of YAML documents. All that fails is printed at the end, and the exit status is 1 then.
// `tests/tours.rs` runs it.

import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const require = createRequire(import.meta.url);
const k8s = await import(pathToFileURL(require.resolve('@kubernetes/client-node')).href);

const NAMESPACE = 'default';
const kubeconfig = new k8s.KubeConfig();
kubeconfig.loadFromFile(process.argv[2]);
const core = kubeconfig.makeApiClient(k8s.CoreV1Api);
const objects = k8s.KubernetesObjectApi.makeApiClient(kubeconfig);
const failures = [];
let passed = 0;

class Failed extends Error {}

function check(holds, what) {
    if (!holds) throw new Failed(typeof what === 'string' ? what : JSON.stringify(what));
}

/** Does one thing; what goes wrong is kept, and the tour goes on. */
async function step(name, work) {
    try {
        const result = await work();
        passed += 1;
        return result;
    } catch (error) {
        const text = error instanceof k8s.ApiException ? `${error.code}: ${error.body}` : error.stack;
        failures.push(`${name}: ${String(text).slice(0, 900)}`);
        return undefined;
    }
}

/** Must end with an error of this code and, in its body, this reason. */
async function refused(code, reason, work) {
    try {
        await work();
    } catch (error) {
        if (!(error instanceof k8s.ApiException)) throw error;
        const body = typeof error.body === 'string' ? JSON.parse(error.body) : error.body;
        check(error.code === code, `code ${error.code}, not ${code}: ${JSON.stringify(body)}`);
        check(body.kind === 'Status' && body.reason === reason, body);
        return body;
    }
    throw new Failed(`not refused with ${code} ${reason}`);
}

// Again while somebody else changes the same: the server writes conditions of some kinds.
async function unlessChanged(work) {
    for (let attempt = 0; ; attempt++) {
        try {
            return await work();
        } catch (error) {
            if (error.code !== 409 || attempt === 20) throw error;
        }
    }
}

async function eventually(holds) {
    const deadline = Date.now() + 20000;
    while (!(await holds())) {
        check(Date.now() < deadline, 'it does not happen');
        await new Promise((done) => setTimeout(done, 50));
    }
}

// one object of every kind, by the client that learns kinds from discovery

async function tourKind(document) {
    const title = `${document.apiVersion} ${document.kind}`;
    const at = (what, work) => step(`${title}: ${what}`, work);
    const isKnown = await objects.resource(document.apiVersion, document.kind).catch(() => undefined);
    if (!isKnown || !isKnown.verbs?.includes('get')) return;
    const own = structuredClone(document);
    if (isKnown.namespaced) own.metadata.namespace = NAMESPACE;
    const { apiVersion, kind } = own;
    const head = { apiVersion, kind, metadata: { name: own.metadata.name, namespace: own.metadata.namespace } };
    const read = () => objects.read(head);
    const dry = await at('create (dry run)', () => objects.create(own, undefined, 'All'));
    if (!dry) return;
    await at('nothing is stored by a dry run', () => refused(404, 'NotFound', read));
    const created = await at('create', () => objects.create(own, undefined, undefined, 'tour'));
    if (!created) return;
    // an address that a service asks for is looked at first
    const hasAddress = (own.spec?.clusterIP ?? 'None') !== 'None';
    const again = hasAddress ? [422, 'Invalid'] : [409, 'AlreadyExists'];
    await at('create again', () => refused(...again, () => objects.create(own)));
    await at('read', async () => check((await read()).metadata.uid === created.metadata.uid, 'another UID'));
    await at('list', async () => {
        const selector = `metadata.name=${head.metadata.name}`;
        const found = await objects.list(
            apiVersion, kind, own.metadata.namespace, undefined, undefined, undefined, selector,
        );
        check(found.items.length === 1 && found.metadata.resourceVersion, found);
    });
    const strategies = {
        merge: k8s.PatchStrategy.MergePatch,
        strategic: k8s.PatchStrategy.StrategicMergePatch,
        apply: k8s.PatchStrategy.ServerSideApply,
    };
    for (const [name, strategy] of Object.entries(strategies)) {
        await at(`${name} patch`, async () => {
            const metadata = { ...head.metadata, labels: { [name]: 'yes' } };
            const changed = await objects.patch(
                { ...head, metadata }, undefined, undefined, 'other', name === 'apply' ? true : undefined, strategy,
            );
            check(changed.metadata.labels[name] === 'yes', changed.metadata);
        });
    }
    await at('replace', async () => {
        const stale = await read();
        const changed = await unlessChanged(async () => {
            const current = await read();
            current.metadata.annotations = { ...current.metadata.annotations, tour: 'replaced' };
            return objects.replace(current);
        });
        check(changed.metadata.annotations.tour === 'replaced', changed.metadata);
        stale.metadata.annotations = { tour: 'stale' };
        await refused(409, 'Conflict', () => objects.replace(stale));
    });
    const finalizers = { ...head, metadata: { ...head.metadata, finalizers: null } };
    const clear = () =>
        objects.patch(finalizers, undefined, undefined, undefined, undefined, k8s.PatchStrategy.MergePatch);
    await at('finalizers', clear);
    await at('delete (dry run)', async () => {
        await objects.delete(head, undefined, 'All');
        await read();
    });
    await at('delete', () => objects.delete(head, undefined, undefined, 0));
    await at('it is gone', async () => {
        const left = await read().catch(() => undefined);
        if (left && kind === 'Namespace') {
            const body = { metadata: { name: head.metadata.name }, spec: { finalizers: [] } };
            await core.replaceNamespaceFinalize({ name: head.metadata.name, body });
        } else if (left) {
            // the server itself may have ended it meanwhile
            await clear().catch(() => undefined);
        }
        await refused(404, 'NotFound', read);
    });
}

// every list that the client knows and the server serves, by its typed classes

async function tourLists() {
    for (const name of Object.keys(k8s).filter((name) => /V\d\w*Api$/.test(name))) {
        const api = kubeconfig.makeApiClient(k8s[name]);
        if (!api.getAPIResources) continue;
        let resources;
        try {
            resources = (await api.getAPIResources()).resources;
        } catch (error) {
            if (error.code !== 404) failures.push(`${name}: ${error}`);
            continue;
        }
        const kinds = new Set(resources.map((resource) => resource.kind));
        for (const method of Object.getOwnPropertyNames(Object.getPrototypeOf(api))) {
            const found = /^list(Namespaced)?(\w+?)(ForAllNamespaces)?$/.exec(method);
            if (!found || method.endsWith('WithHttpInfo') || !kinds.has(found[2])) continue;
            await step(`${name}.${method}`, async () => {
                const list = await api[method]({ namespace: NAMESPACE, limit: 2 });
                // component statuses are not stored
                const has = list.metadata.resourceVersion || found[2] === 'ComponentStatus';
                check(Array.isArray(list.items) && has, list);
            });
        }
    }
}

const configMap = (name, data = {}) => ({
    apiVersion: 'v1', kind: 'ConfigMap', metadata: { name, namespace: NAMESPACE, labels: { tour: 'pages' } }, data,
});

async function tourDiscovery() {
    const version = await kubeconfig.makeApiClient(k8s.VersionApi).getCode();
    check(version.gitVersion.startsWith('v1.'), version);
    const groups = await kubeconfig.makeApiClient(k8s.ApisApi).getAPIVersions();
    check(groups.groups.some((group) => group.name === 'apps'), groups);
    check((await kubeconfig.makeApiClient(k8s.CoreApi).getAPIVersions()).versions.includes('v1'), 'v1');
    const well = await kubeconfig.makeApiClient(k8s.WellKnownApi).getServiceAccountIssuerOpenIDConfiguration();
    check(well, 'issuer');
}

async function tourPages() {
    for (let i = 0; i < 7; i++) {
        await core.createNamespacedConfigMap({ namespace: NAMESPACE, body: configMap(`page-${i}`) });
    }
    const names = [];
    let token;
    do {
        const page = await core.listNamespacedConfigMap({
            namespace: NAMESPACE, limit: 3, labelSelector: 'tour=pages', _continue: token,
        });
        names.push(...page.items.map((item) => item.metadata.name));
        token = page.metadata._continue;
    } while (token);
    check(names.join() === [...Array(7).keys()].map((i) => `page-${i}`).join(), names);
    const deleted = await core.deleteCollectionNamespacedConfigMap({
        namespace: NAMESPACE, labelSelector: 'tour=pages',
    });
    check(deleted, 'the answer');
    const left = await core.listNamespacedConfigMap({ namespace: NAMESPACE, labelSelector: 'tour=pages' });
    check(left.items.length === 0, left.items.length);
}

async function tourWatch() {
    const path = `/api/v1/namespaces/${NAMESPACE}/configmaps`;
    const { metadata } = await core.listNamespacedConfigMap({ namespace: NAMESPACE });
    const seen = [];
    const ended = new Promise((done, failed) => {
        new k8s.Watch(kubeconfig)
            .watch(
                path,
                { resourceVersion: metadata.resourceVersion, allowWatchBookmarks: true, timeoutSeconds: 3 },
                (type, object) => {
                    if (object.metadata.name === 'watched') seen.push(type);
                },
                (error) => (error ? failed(error) : done()),
            )
            .catch(failed);
    });
    await core.createNamespacedConfigMap({ namespace: NAMESPACE, body: configMap('watched') });
    await core.patchNamespacedConfigMap(
        { name: 'watched', namespace: NAMESPACE, body: { data: { a: 'b' } } },
        k8s.setHeaderOptions('Content-Type', k8s.PatchStrategy.MergePatch),
    );
    await core.deleteNamespacedConfigMap({ name: 'watched', namespace: NAMESPACE });
    await ended.catch((error) => check(error.name === 'AbortError', String(error)));
    check(seen.join() === 'ADDED,MODIFIED,DELETED', seen);
}

async function tourInformer() {
    const listing = () => core.listNamespacedConfigMap({ namespace: NAMESPACE });
    const informer = k8s.makeInformer(kubeconfig, `/api/v1/namespaces/${NAMESPACE}/configmaps`, listing);
    const seen = new Set();
    for (const event of ['add', 'update', 'delete']) {
        informer.on(event, (object) => seen.add(`${event} ${object.metadata.name}`));
    }
    informer.on('error', (error) => seen.add(`error ${error}`));
    await informer.start();
    try {
        await core.createNamespacedConfigMap({ namespace: NAMESPACE, body: configMap('informed') });
        await eventually(() => seen.has('add informed'));
        const body = [{ op: 'add', path: '/data', value: { a: 'b' } }];
        await core.patchNamespacedConfigMap({ name: 'informed', namespace: NAMESPACE, body });
        await eventually(() => seen.has('update informed'));
        await core.deleteNamespacedConfigMap({ name: 'informed', namespace: NAMESPACE });
        await eventually(() => seen.has('delete informed'));
    } finally {
        await informer.stop();
    }
}

async function tourPods() {
    const containers = [{ name: 'main', image: 'busybox' }];
    const pod = { metadata: { name: 'bound', labels: { app: 'bound' } }, spec: { containers } };
    const place = { name: 'bound', namespace: NAMESPACE };
    await core.createNode({ body: { metadata: { name: 'tour-node' } } });
    await core.createNamespacedPod({ namespace: NAMESPACE, body: pod });
    const target = { kind: 'Node', name: 'tour-node' };
    await core.createNamespacedPodBinding({ ...place, body: { metadata: { name: 'bound' }, target } });
    check((await core.readNamespacedPod(place)).spec.nodeName === 'tour-node', 'it is not bound');
    const merge = k8s.setHeaderOptions('Content-Type', k8s.PatchStrategy.StrategicMergePatch);
    const body = { status: { phase: 'Running', conditions: [{ type: 'Ready', status: 'True' }] } };
    check((await core.patchNamespacedPodStatus({ ...place, body }, merge)).status.phase === 'Running', 'phase');
    const policy = kubeconfig.makeApiClient(k8s.PolicyV1Api);
    const budget = {
        metadata: { name: 'bound' }, spec: { minAvailable: 1, selector: { matchLabels: { app: 'bound' } } },
    };
    await policy.createNamespacedPodDisruptionBudget({ namespace: NAMESPACE, body: budget });
    const eviction = { metadata: { name: 'bound', namespace: NAMESPACE } };
    const evict = () => core.createNamespacedPodEviction({ ...place, body: eviction });
    await refused(429, 'TooManyRequests', evict);
    await policy.deleteNamespacedPodDisruptionBudget(place);
    await evict();
    await core.deleteNamespacedPod({ ...place, gracePeriodSeconds: 0 });
    await refused(404, 'NotFound', () => core.readNamespacedPod(place));
    await core.deleteNode({ name: 'tour-node' });
}

async function tourScale() {
    const apps = kubeconfig.makeApiClient(k8s.AppsV1Api);
    const template = {
        metadata: { labels: { app: 'a' } }, spec: { containers: [{ name: 'main', image: 'busybox' }] },
    };
    const body = {
        metadata: { name: 'scaled' }, spec: { replicas: 1, selector: { matchLabels: { app: 'a' } }, template },
    };
    const place = { name: 'scaled', namespace: NAMESPACE };
    await apps.createNamespacedDeployment({ namespace: NAMESPACE, body });
    const scale = await apps.readNamespacedDeploymentScale(place);
    check(scale.spec.replicas === 1 && scale.kind === 'Scale', scale);
    scale.spec.replicas = 4;
    await apps.replaceNamespacedDeploymentScale({ ...place, body: scale });
    check((await apps.readNamespacedDeployment(place)).spec.replicas === 4, 'replicas');
    await apps.deleteNamespacedDeployment({ ...place, propagationPolicy: 'Background' });
}

async function tourAccess() {
    await core.createNamespacedServiceAccount({ namespace: NAMESPACE, body: { metadata: { name: 'account' } } });
    const request = { spec: { audiences: [], expirationSeconds: 3600 } };
    const place = { name: 'account', namespace: NAMESPACE };
    const { status } = await core.createNamespacedServiceAccountToken({ ...place, body: request });
    check(status.expirationTimestamp instanceof Date, status);
    const authentication = kubeconfig.makeApiClient(k8s.AuthenticationV1Api);
    const review = await authentication.createTokenReview({ body: { spec: { token: status.token } } });
    check(review.status.user.username === `system:serviceaccount:${NAMESPACE}:account`, review.status);
    const own = new k8s.KubeConfig();
    own.loadFromOptions({
        clusters: kubeconfig.clusters,
        users: [{ name: 'account', token: status.token }],
        contexts: [{ name: 'c', cluster: kubeconfig.clusters[0].name, user: 'account' }],
        currentContext: 'c',
    });
    const list = () => own.makeApiClient(k8s.CoreV1Api).listNamespacedSecret({ namespace: NAMESPACE });
    const body = await refused(403, 'Forbidden', list);
    check(body.message.includes('cannot list resource "secrets"'), body);
    const authorization = kubeconfig.makeApiClient(k8s.AuthorizationV1Api);
    const attributes = { namespace: NAMESPACE, verb: 'list', resource: 'pods' };
    const allowed = await authorization.createSelfSubjectAccessReview({
        body: { spec: { resourceAttributes: attributes } },
    });
    check(allowed.status.allowed, allowed.status);
}

async function tourCustom() {
    const extensions = kubeconfig.makeApiClient(k8s.ApiextensionsV1Api);
    const spec = {
        type: 'object',
        properties: { size: { type: 'integer', maximum: 9 }, color: { type: 'string', _default: 'red' } },
    };
    const schema = { openAPIV3Schema: { type: 'object', properties: { spec, status: { type: 'object' } } } };
    const group = 'tour.example.com';
    const name = `toys.${group}`;
    const version = { name: 'v1', served: true, storage: true, schema, subresources: { status: {} } };
    const names = { plural: 'toys', singular: 'toy', kind: 'Toy', listKind: 'ToyList' };
    const body = { metadata: { name }, spec: { group, scope: 'Namespaced', names, versions: [version] } };
    await extensions.createCustomResourceDefinition({ body });
    await eventually(async () => {
        const { status } = await extensions.readCustomResourceDefinition({ name });
        return status?.conditions?.some((one) => one.type === 'Established' && one.status === 'True');
    });
    const custom = kubeconfig.makeApiClient(k8s.CustomObjectsApi);
    const place = { group, version: 'v1', namespace: NAMESPACE, plural: 'toys' };
    const toy = (name, size) => ({ apiVersion: `${group}/v1`, kind: 'Toy', metadata: { name }, spec: { size } });
    const made = await custom.createNamespacedCustomObject({ ...place, body: toy('one', 2) });
    check(made.spec.color === 'red', made);
    const create = () => custom.createNamespacedCustomObject({ ...place, body: toy('two', 10) });
    await refused(422, 'Invalid', create);
    const merge = k8s.setHeaderOptions('Content-Type', k8s.PatchStrategy.MergePatch);
    await custom.patchNamespacedCustomObject({ ...place, name: 'one', body: { spec: { size: 3 } } }, merge);
    const found = await custom.getNamespacedCustomObject({ ...place, name: 'one' });
    check(found.spec.size === 3, found);
    await objects.patch(
        { ...toy('three', 4), metadata: { name: 'three', namespace: NAMESPACE } },
        undefined, undefined, 'tour', true, k8s.PatchStrategy.ServerSideApply,
    );
    const list = await custom.listNamespacedCustomObject(place);
    check(list.items.length === 2 && list.kind === 'ToyList', list);
    await custom.deleteCollectionNamespacedCustomObject(place);
    check((await custom.listNamespacedCustomObject(place)).items.length === 0, 'toys are left');
    await extensions.deleteCustomResourceDefinition({ name });
}

const tours = {
    tourDiscovery, tourLists, tourPages, tourWatch, tourInformer, tourPods, tourScale, tourAccess, tourCustom,
};
for (const [name, work] of Object.entries(tours)) await step(name, work);
for (const document of k8s.loadAllYaml(readFileSync(process.argv[3], 'utf8'))) {
    await step(`${document.kind} as a whole`, () => tourKind(document));
}
for (const failure of failures) console.log(`FAILED ${failure}`);
console.log(`${passed} passed, ${failures.length} failed`);
process.exit(failures.length ? 1 : 0);
