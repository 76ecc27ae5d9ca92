//! Selectors of devices: expressions of CEL that see one device.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock};

use k8s_openapi::api::resource::v1::DeviceAttribute;
use longshore_cel::device::compile_selector;
use longshore_cel::{Budget, Error, Key, Map, PER_CALL_LIMIT, Program, Str, Value};
use longshore_quantity::Quantity;
use parking_lot::Mutex;

use crate::model::Device;

/// How many compiled expressions are kept.
const KEPT: usize = 1000;

/// Why a selector cannot say whether it selects a device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum SelectorError {
    /// It is no expression.
    #[error("CEL compile error: {0}")]
    Compile(Arc<str>),
    /// It has no value for the device.
    #[error("CEL runtime error: {0}")]
    Run(#[from] Error),
}

/// Whether an expression selects a device.
pub(super) fn selects(expression: &str, device: &Device) -> Result<bool, SelectorError> {
    let program = program(expression).map_err(SelectorError::Compile)?;
    let device = value(device)?;
    match program.evaluate(&[device], &mut Budget(PER_CALL_LIMIT))? {
        Value::Bool(selected) => Ok(selected),
        other => {
            let text = format!("expected bool, got {}", other.type_of());
            Err(SelectorError::Run(Error::new(text)))
        }
    }
}

type Compiled = Result<Arc<Program>, Arc<str>>;

/// Compiles the expression, unless it was before.
fn program(expression: &str) -> Compiled {
    static PROGRAMS: LazyLock<Mutex<HashMap<String, Compiled>>> = LazyLock::new(Mutex::default);
    if let Some(known) = PROGRAMS.lock().get(expression) {
        return known.clone();
    }
    let compiled = compile_selector(expression).map(Arc::new).map_err(Into::into);
    let mut programs = PROGRAMS.lock();
    if programs.len() >= KEPT {
        programs.clear();
    }
    programs.insert(expression.to_owned(), compiled.clone());
    compiled
}

/// The device as expressions see it.
fn value(device: &Device) -> Result<Value<'_>, Error> {
    let attributes = device.api.attributes.iter().flatten();
    let attributes = attributes
        .map(|(name, own)| Ok((name.as_str(), attribute(own)?)))
        .collect::<Result<Vec<_>, Error>>()?;
    let capacities = device.api.capacity.iter().flatten();
    let capacities = capacities.map(|(name, own)| {
        let quantity = Quantity::parse(&own.value.0);
        let quantity =
            quantity.ok_or_else(|| Error::new(format!("capacity {name}: no quantity")))?;
        Ok((name.as_str(), Value::quantity(quantity)))
    });
    let capacities = capacities.collect::<Result<Vec<_>, Error>>()?;
    let multiple = device.api.allow_multiple_allocations == Some(true);
    let driver = &*device.id.driver;
    let fields = [
        ("driver", Value::text(driver)),
        ("allowMultipleAllocations", Value::Bool(multiple)),
        ("attributes", by_domain(driver, attributes)),
        ("capacity", by_domain(driver, capacities)),
    ];
    let fields = fields.map(|(name, value)| (key(name), value));
    Ok(Value::Map(Map::Owned(Arc::new(fields.into()))))
}

fn key(name: &str) -> Key<'_> {
    Key::String(Str::Borrowed(name))
}

fn attribute(attribute: &DeviceAttribute) -> Result<Value<'_>, Error> {
    match attribute {
        DeviceAttribute { int: Some(int), .. } => Ok(Value::Int(*int)),
        DeviceAttribute { bool: Some(bool), .. } => Ok(Value::Bool(*bool)),
        DeviceAttribute { string: Some(text), .. } => Ok(Value::String(Str::Borrowed(text))),
        DeviceAttribute { version: Some(version), .. } => Value::semver(version),
        _ => Err(Error::new("unsupported attribute value")),
    }
}

/// Values by the domain of their names, and by the rest. The domain of a name without one is the driver.
fn by_domain<'v>(driver: &'v str, values: Vec<(&'v str, Value<'v>)>) -> Value<'v> {
    let mut domains: BTreeMap<&str, BTreeMap<Key<'v>, Value<'v>>> = BTreeMap::new();
    for (name, value) in values {
        let (domain, name) = name.split_once('/').unwrap_or((driver, name));
        domains.entry(domain).or_default().insert(key(name), value);
    }
    let domains = domains.into_iter();
    let domains = domains.map(|(domain, own)| (key(domain), Value::Map(Map::Owned(Arc::new(own)))));
    Value::Map(Map::Nested(Arc::new(domains.collect())))
}
