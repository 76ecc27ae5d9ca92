//! The device manager: the state, the plugins, and the tasks that keep both.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use k8s_openapi::api::core::v1::{Container, Pod, PodStatus, ResourceHealth, ResourceStatus};
use longshore_base::rate::TokenBucket;
use longshore_base::time;
use longshore_grpc::socket;
use longshore_metrics::Counter;
use longshore_pod::spec;
use longshore_topology::{DeviceProvider, DeviceRefusal};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use crate::checkpoint::Content;
use crate::error::Error;
use crate::metrics::Metrics;
use crate::options::ContainerDevices;
use crate::plugin::Plugin;
use crate::registration::Register;
use crate::select::{
    NumaNodes, PodRequest, Preference, Preferences, Query, Selection, container_request,
};
use crate::state::{Capacity, Device, Endpoint, MOST_RESOURCES, State};
use crate::store::Store;
use crate::v1beta1::{ContainerAllocateResponse, ListAndWatchResponse, RegisterRequest};
use crate::{names, registration};

/// The plugins' folder below the root directory.
const FOLDER: &str = "device-plugins";
/// The daemon's socket in it.
const SOCKET: &str = "kubelet.sock";
/// How many lists of devices of a plugin are taken at once, and how many a second from then on; what
/// comes in between is skipped.
const LIST_BURST: f64 = 10.0;
const LIST_RATE: f64 = 1.0;
/// The same for changes of the node's capacity.
const CAPACITY_BURST: f64 = 5.0;
const CAPACITY_RATE: f64 = 0.1;

/// Settings of the manager.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The node's root directory.
    pub root_dir: PathBuf,
    /// Whether the health of devices is in the status of pods (gate `ResourceHealthStatus`).
    pub reports_health: bool,
    /// Whether pods that were admitted before wait for their plugin, in place of a new admission
    /// that rejects them.
    pub waits_for_plugins: bool,
    /// Reads the NUMA nodes of the machine.
    pub numa_nodes: fn() -> Vec<u32>,
}

/// The device manager. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Devices {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    folder: PathBuf,
    settings: Settings,
    numa_nodes: NumaNodes,
    state: Mutex<State>,
    /// Registered plugins by resource.
    plugins: Mutex<HashMap<String, Connected>>,
    /// Changes when the health of a pod's devices does. By UID.
    health: Mutex<HashMap<String, watch::Sender<u64>>>,
    /// The state has changed.
    changed: watch::Sender<()>,
    capacity: watch::Sender<Capacity>,
    store: Store,
    /// Whether there was no checkpoint at the start.
    is_new: bool,
    metrics: Metrics,
}

/// A registered plugin, and the task that follows its devices.
#[derive(Debug)]
struct Connected {
    plugin: Plugin,
    generation: u64,
    task: JoinHandle<()>,
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Devices {
    /// Restores what the checkpoint has. Plugins cannot register before [`Devices::run`].
    pub fn open(settings: Settings, metrics: Metrics) -> Self {
        let folder = settings.root_dir.join(FOLDER);
        let store = Store::new(&folder);
        let content = store.load();
        let is_new = content.is_none();
        let Content { registered, pods } = content.unwrap_or_default();
        let state = State::restored(registered.into_keys(), pods, Instant::now());
        Self {
            shared: Arc::new(Shared {
                folder,
                numa_nodes: LazyLock::new(settings.numa_nodes),
                settings,
                capacity: watch::Sender::new(state.capacity()),
                state: Mutex::new(state),
                plugins: Mutex::default(),
                health: Mutex::default(),
                changed: watch::Sender::new(()),
                store,
                is_new,
                metrics,
            }),
        }
    }

    /// Serves registrations, writes the checkpoint and publishes the capacity, forever.
    pub async fn run(self) {
        if let Err(error) = self.prepare_folder() {
            let path = self.shared.folder.display();
            warn!(%path, %error, "cannot prepare the folder of device plugins");
        }
        let devices = self.clone();
        let register: Register = Arc::new(move |request| {
            let devices = devices.clone();
            Box::pin(async move { devices.register_below(request).await })
        });
        let serve = move |listener| registration::serve(listener, register.clone());
        let shared = &self.shared;
        // None of them returns.
        tokio::join!(
            socket::keep(shared.folder.join(SOCKET), serve),
            shared.store.run(|| Content::of(&self.state())),
            self.publish(),
        );
    }

    fn prepare_folder(&self) -> std::io::Result<()> {
        let folder = &self.shared.folder;
        socket::make_folder(folder)?;
        socket::remove_sockets(folder)
    }

    /// Registers a plugin that has its socket in the plugins' folder.
    async fn register_below(&self, request: RegisterRequest) -> Result<(), Error> {
        let RegisterRequest { version, endpoint, resource_name, .. } = request;
        names::check([version.as_str()], &resource_name)?;
        let socket = names::socket(&self.shared.folder, &endpoint)?;
        self.connect(&resource_name, &socket).await
    }

    /// The node's amounts of the resources of plugins. Changes are rate limited.
    pub fn capacity(&self) -> watch::Receiver<Capacity> {
        self.shared.capacity.subscribe()
    }

    /// Whether this node had no device manager before: extended resources that its object has are left
    /// from another node of that name.
    pub fn is_new(&self) -> bool {
        self.shared.is_new
    }

    /// Changes when the health of a pod's devices does.
    pub fn subscribe(&self, uid: &str) -> watch::Receiver<u64> {
        let mut health = self.shared.health.lock();
        health.entry(uid.to_owned()).or_insert_with(|| watch::Sender::new(0)).subscribe()
    }

    /// Registers the plugin of a resource that has a socket in the folder of all plugins.
    ///
    /// # Errors
    /// When its name or versions are invalid, or it does not answer.
    pub async fn register(
        &self,
        resource: &str,
        versions: &[String],
        socket: &Path,
    ) -> Result<(), Error> {
        names::check(versions.iter().map(String::as_str), resource)?;
        self.connect(resource, socket).await
    }

    /// The plugin of a resource has removed its socket from the folder of all plugins.
    pub fn deregister(&self, resource: &str) {
        let gone = self.shared.plugins.lock().remove(resource);
        if let Some(gone) = gone {
            self.disconnected(resource, gone.generation);
        }
    }

    /// Connects to a plugin, and follows its devices from then on. An earlier plugin of the resource is
    /// replaced.
    async fn connect(&self, resource: &str, socket: &Path) -> Result<(), Error> {
        self.state().check_room(resource)?;
        // Plugins choose the names.
        let counted = self.shared.metrics.registrations.with_at_most(MOST_RESOURCES, [resource]);
        counted.inspect(Counter::inc);
        let plugin = Plugin::connect(socket).await?;
        let options = plugin.options().await?;
        let mut plugins = self.shared.plugins.lock();
        let generation = {
            let mut state = self.state();
            state.check_room(resource)?;
            state.connected(resource, options)
        };
        let (devices, followed, name) = (self.clone(), plugin.clone(), resource.to_owned());
        let task = tokio::spawn(async move {
            devices.follow(&name, generation, followed).await;
            devices.disconnected(&name, generation);
        });
        plugins.insert(resource.to_owned(), Connected { plugin, generation, task });
        drop(plugins);
        info!(resource, socket = %socket.display(), "device plugin registered");
        self.shared.changed.send_replace(());
        Ok(())
    }

    /// Takes each list of devices that the plugin sends, until the stream ends. A plugin that sends too
    /// many is slowed down: only the newest list counts.
    async fn follow(&self, resource: &str, generation: u64, plugin: Plugin) {
        let ended = |error: &dyn std::fmt::Display| {
            warn!(resource, %error, "ListAndWatch ended unexpectedly for a device plugin");
        };
        let mut stream = match plugin.devices().await {
            Ok(stream) => stream,
            Err(failure) => return ended(&failure.go_text()),
        };
        let now = || Instant::now().into_std();
        let mut bucket = TokenBucket::new(LIST_RATE, LIST_BURST, now());
        let mut end = None;
        while end.is_none() {
            let mut newest = None;
            let mut due = None;
            // The first list starts the wait for its turn.
            loop {
                tokio::select! {
                    biased;
                    () = time::until(due) => break,
                    message = stream.message() => match message {
                        Ok(Some(list)) => {
                            newest = Some(list);
                            due = due.or_else(|| {
                                Some(time::after(bucket.reserve(now())))
                            });
                        }
                        Ok(None) => { end = Some("EOF".to_owned()); break }
                        Err(status) => { end = Some(status.message().to_owned()); break }
                    },
                }
            }
            if let Some(list) = newest {
                self.listed(resource, generation, list);
            }
        }
        ended(&end.unwrap_or_default());
    }

    fn listed(&self, resource: &str, generation: u64, list: ListAndWatchResponse) {
        let devices: BTreeMap<String, Device> =
            list.devices.into_iter().map(|device| (device.id.clone(), device.into())).collect();
        let count = devices.len();
        let changed = self.state().listed(resource, generation, devices);
        let Some(changed) = changed else { return };
        tracing::debug!(resource, count, "devices listed");
        self.noted();
        let health = self.shared.health.lock();
        for uid in &changed {
            if let Some(sender) = health.get(uid) {
                sender.send_modify(|version| *version = version.wrapping_add(1));
            }
        }
    }

    fn disconnected(&self, resource: &str, generation: u64) {
        if self.state().disconnected(resource, generation, Instant::now()) {
            info!(resource, "device plugin is gone");
            self.noted();
        }
    }

    /// The state has changed.
    fn noted(&self) {
        self.shared.store.changed();
        self.shared.changed.send_replace(());
    }

    async fn publish(&self) {
        let mut changed = self.shared.changed.subscribe();
        let now = || Instant::now().into_std();
        let mut bucket = TokenBucket::new(CAPACITY_RATE, CAPACITY_BURST, now());
        loop {
            changed.borrow_and_update();
            self.expire();
            if *self.shared.capacity.borrow() != self.current_capacity() {
                sleep(bucket.reserve(now())).await;
                let capacity = self.current_capacity();
                self.shared.capacity.send_if_modified(|known| {
                    let is_other = *known != capacity;
                    *known = capacity;
                    is_other
                });
            }
            let next = self.state().next_expiry();
            tokio::select! {
                () = time::until(next) => {}
                changed = changed.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Forgets plugins that have been gone for long.
    fn expire(&self) {
        let mut plugins = self.shared.plugins.lock();
        let mut state = self.state();
        if state.expire(Instant::now()) {
            plugins.retain(|resource, _| state.resources.contains_key(resource));
            self.shared.store.changed();
        }
    }

    fn current_capacity(&self) -> Capacity {
        self.state().capacity()
    }

    /// Whether the pod has devices, or requests resources of plugins.
    pub fn concerns(&self, pod: &Pod) -> bool {
        let state = self.state();
        state.pods.contains_key(spec::uid(pod)) || !PodRequest::of(pod, &state).is_empty()
    }

    /// Whether a pod that was admitted before is to be admitted again before its containers start, as
    /// its plugin may have gone. `runs`: whether any of them runs.
    pub fn must_readmit(&self, pod: &Pod, runs: bool) -> bool {
        !runs && !self.shared.settings.waits_for_plugins && self.concerns(pod)
    }

    /// Begins the choice of a pod's devices. Other decisions about devices wait for its end.
    pub fn select<'a>(&'a self, pod: &Pod, preferences: &'a Preferences) -> Selection<'a> {
        Selection::new(self.state(), pod, preferences, &self.shared.numa_nodes)
    }

    /// Asks a plugin which devices it prefers.
    pub async fn prefer(&self, query: &Query) -> Preference {
        let plugin = match self.plugin(&query.resource) {
            Ok(plugin) => plugin,
            Err(error) => return Preference::Failed(error.to_string()),
        };
        match plugin.prefer(query).await {
            Ok(ids) => Preference::Devices(ids),
            Err(why) => Preference::Failed(why),
        }
    }

    /// Has plugins allocate the devices that were chosen for a pod, one container after the other.
    ///
    /// # Errors
    /// When one refuses; what the pod holds is the caller's to release.
    pub async fn allocate(&self, uid: &str) -> Result<(), Error> {
        let mut any = false;
        while let Some((container, resource, ids)) = self.next_unanswered(uid) {
            any = true;
            let response = self.allocate_one(&resource, ids).await?;
            let mut state = self.state();
            let own = state.pods.get_mut(uid).and_then(|own| own.get_mut(&container));
            match own.and_then(|own| own.get_mut(&resource)) {
                Some(holding) => holding.response = Some(response),
                None => break, // released meanwhile
            }
        }
        if any {
            self.noted();
        }
        Ok(())
    }

    fn next_unanswered(&self, uid: &str) -> Option<(String, String, Vec<String>)> {
        let state = self.state();
        let mut all = state.pods.get(uid)?.iter().flat_map(|(container, own)| {
            own.iter().map(move |(resource, holding)| (container, resource, holding))
        });
        let (container, resource, holding) =
            all.find(|(_, _, holding)| holding.response.is_none())?;
        Some((container.clone(), resource.clone(), holding.ids().into_iter().collect()))
    }

    async fn allocate_one(
        &self,
        resource: &str,
        ids: Vec<String>,
    ) -> Result<ContainerAllocateResponse, Error> {
        let plugin = self.plugin(resource)?;
        let began = Instant::now();
        let response = plugin.allocate(ids).await;
        let took = began.elapsed();
        let durations = self.shared.metrics.allocations.with_at_most(MOST_RESOURCES, [resource]);
        durations.inspect(|durations| durations.took(took));
        response?.ok_or_else(|| Error::NoResponse(resource.to_owned()))
    }

    /// The plugin of a resource, unless it has gone.
    fn plugin(&self, resource: &str) -> Result<Plugin, Error> {
        let plugins = self.shared.plugins.lock();
        let stopped = {
            let state = self.state();
            let known = state.resources.get(resource);
            known.map(|known| known.endpoint.stopped.is_some())
        };
        match (stopped, plugins.get(resource)) {
            (None, _) => Err(Error::Unknown(resource.to_owned())),
            (Some(false), Some(connected)) => Ok(connected.plugin.clone()),
            _ => Err(Error::Stopped(resource.to_owned())),
        }
    }

    /// What a container that is about to be created gets for its devices. A container without an
    /// allocation gets one, as after the loss of the checkpoint.
    ///
    /// # Errors
    /// When its plugin has not registered yet or refuses, or the allocation is not on disk.
    pub async fn container(
        &self,
        pod: &Pod,
        container: &Container,
    ) -> Result<ContainerDevices, Error> {
        let (uid, name) = (spec::uid(pod), &container.name);
        let request = container_request(pod, container, &self.state());
        let mut is_missing = false;
        for resource in request.keys() {
            self.pre_start(uid, name, resource).await?;
            let state = self.state();
            let holding = state.holding(uid, name, resource);
            is_missing |= holding.is_none_or(|own| own.response.is_none());
        }
        if is_missing {
            self.choose_again(pod, name).await?;
            self.allocate(uid).await?;
        }
        let devices = {
            let state = self.state();
            let own = state.pods.get(uid).and_then(|own| own.get(name.as_str()));
            let responses = own.into_iter().flat_map(BTreeMap::values);
            ContainerDevices::merged(responses.filter_map(|own| own.response.as_ref()))
        };
        if !request.is_empty() {
            self.shared.store.written().await?;
        }
        Ok(devices)
    }

    async fn pre_start(&self, uid: &str, container: &str, resource: &str) -> Result<(), Error> {
        let (endpoint, held) = {
            let state = self.state();
            let known = state.resources.get(resource);
            let endpoint = known.map(|known| known.endpoint.clone());
            let held = state.holding(uid, container, resource).map(crate::state::Holding::ids);
            (endpoint, held)
        };
        let is_registered = endpoint.as_ref().is_some_and(|endpoint| !endpoint.is_restored);
        if !is_registered && self.shared.settings.waits_for_plugins {
            return Err(Error::Waiting(resource.to_owned()));
        }
        let Some(Endpoint { options, .. }) = endpoint else {
            return Err(Error::NoEndpoint(resource.to_owned()));
        };
        if !options.pre_start_required {
            return Ok(());
        }
        let held = held.ok_or_else(|| Error::NotAllocated {
            uid: uid.to_owned(),
            container: container.to_owned(),
            resource: resource.to_owned(),
        })?;
        self.plugin(resource)?.pre_start(held.into_iter().collect()).await
    }

    /// Chooses the devices of one container of a pod that was admitted without them.
    async fn choose_again(&self, pod: &Pod, container: &str) -> Result<(), Error> {
        let mut preferences = Preferences::default();
        loop {
            let query = {
                let mut selection = self.select(pod, &preferences);
                match selection.allocate(container, None) {
                    Ok(()) => {
                        selection.commit();
                        return Ok(());
                    }
                    Err(DeviceRefusal::Failed(why)) => return Err(Error::Allocate(why)),
                    Err(DeviceRefusal::Unanswered) => selection.query(),
                }
            };
            let Some(query) = query else { return Ok(()) };
            let preference = self.prefer(&query).await;
            preferences.add(query, preference);
        }
    }

    /// Nothing of the pod runs any more: its devices are free.
    pub fn release(&self, uid: &str) {
        self.shared.health.lock().remove(uid);
        if self.state().release(uid) {
            self.noted();
        }
    }

    /// Releases what pods hold that are not on the node any more.
    pub fn retain(&self, is_there: impl Fn(&str) -> bool) {
        let gone: Vec<String> = {
            let state = self.state();
            state.pods.keys().filter(|uid| !is_there(uid)).cloned().collect()
        };
        for uid in gone {
            info!(uid, "releasing the devices of a removed pod");
            self.release(&uid);
        }
    }

    /// The devices of a container, by resource, with the nodes that they had when they were allocated.
    pub fn of_container(
        &self,
        uid: &str,
        container: &str,
    ) -> BTreeMap<String, BTreeMap<String, Device>> {
        let state = self.state();
        let own = state.pods.get(uid).and_then(|own| own.get(container)).into_iter().flatten();
        let own = own.filter(|(_, holding)| !holding.by_node.is_empty());
        own.map(|(resource, holding)| (resource.clone(), holding.devices())).collect()
    }

    /// The devices that can be allocated, in use or not, by resource.
    pub fn allocatable(&self) -> BTreeMap<String, BTreeMap<String, Device>> {
        self.state().allocatable()
    }

    /// Adds the health of a pod's devices to its status. Once they are released, that of the last
    /// status stays.
    pub fn add_health(&self, uid: &str, status: &mut PodStatus, last: &PodStatus) {
        if !self.shared.settings.reports_health {
            return;
        }
        let state = self.state();
        let Some(containers) = state.pods.get(uid) else {
            let all = status.container_statuses.iter_mut().flatten();
            for own in all.filter(|own| own.allocated_resources_status.is_none()) {
                let mut before = last.container_statuses.iter().flatten();
                let before = before.find(|before| before.name == own.name);
                let before = before.and_then(|before| before.allocated_resources_status.clone());
                own.allocated_resources_status = before;
            }
            return;
        };
        for own in status.container_statuses.iter_mut().flatten() {
            for (resource, holding) in containers.get(&own.name).into_iter().flatten() {
                let health = |id: &String| {
                    let is_healthy = state.is_healthy(resource, id);
                    let health = if is_healthy { "Healthy" } else { "Unhealthy" };
                    ResourceHealth {
                        resource_id: id.clone(),
                        health: Some(health.to_owned()),
                        ..ResourceHealth::default()
                    }
                };
                let resources = Some(holding.ids().iter().map(health).collect());
                let new = ResourceStatus { name: resource.clone(), resources };
                let all = own.allocated_resources_status.get_or_insert_default();
                match all.iter_mut().find(|known| known.name == *resource) {
                    Some(known) => *known = new,
                    None => all.push(new),
                }
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock()
    }
}

impl Default for Devices {
    /// Without plugins, for tests.
    fn default() -> Self {
        let settings = Settings {
            root_dir: PathBuf::from("/nonexistent"),
            reports_health: true,
            waits_for_plugins: false,
            numa_nodes: Vec::new,
        };
        Self::open(settings, Metrics::new(&longshore_metrics::Registry::default()))
    }
}

#[cfg(test)]
mod tests;
