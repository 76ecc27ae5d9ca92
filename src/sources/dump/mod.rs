//! The name that upstream gives to a static pod whose manifest has no UID: a hash of the whole pod
//! as Go's kubelet prints it. It must be upstream's to the bit, or every static pod, a control plane
//! among them, is restarted when a node changes hands.
//!
//! The printer walks the pod's JSON along a table of Go's internal types (`types.txt`); what
//! conversion from v1 changes is done to the JSON before that.
//!
//! Current limitations: three things are not printed as there, and give a UID that is stable but not
//! upstream's. Moments (`creationTimestamp` and the like), for Go prints its view of the machine's
//! time zone with them; `fieldsV1`; and pod-level requests that are a sum over containers.

mod quantity;
mod types;

use std::fmt::{self, Write};

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

pub(super) use quantity::Quantity;
use types::{Shape, Types};

/// The UID of a static pod with defaults applied, and nothing yet that names its node. `origin`
/// tells where it comes from, as upstream words it.
pub(super) fn uid(pod: &Pod, origin: fmt::Arguments<'_>) -> String {
    let mut hasher = Fnv128a(FNV_OFFSET);
    // Writing to a hasher cannot fail.
    let _ = print(pod, &mut hasher);
    let _ = hasher.write_fmt(origin);
    format!("{:032x}", hasher.0)
}

/// Print a pod as Go does.
fn print(pod: &Pod, out: &mut dyn Write) -> fmt::Result {
    let types = Types::read();
    Printer { types: &types, out }.typed("*core.Pod", &internal(pod))
}

const FNV_OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
const FNV_PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;

/// 128-bit FNV-1a of all that is written.
struct Fnv128a(u128);

impl Write for Fnv128a {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 = text
            .bytes()
            .fold(self.0, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(FNV_PRIME));
        Ok(())
    }
}

/// Annotations by which init containers were once declared.
const INIT_ANNOTATIONS: [&str; 4] = [
    "pod.beta.kubernetes.io/init-containers",
    "pod.alpha.kubernetes.io/init-containers",
    "pod.beta.kubernetes.io/init-container-statuses",
    "pod.alpha.kubernetes.io/init-container-statuses",
];

/// The pod in the shape that it has inside upstream, which differs from v1 in a few fields.
fn internal(pod: &Pod) -> Value {
    let mut pod = serde_json::to_value(pod).unwrap_or_default();
    if let Some(annotations) = pod["metadata"]["annotations"].as_object_mut() {
        annotations.retain(|name, _| !INIT_ANNOTATIONS.contains(&name.as_str()));
    }
    let spec = &mut pod["spec"];
    for field in ["hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace", "hostUsers"] {
        spec["securityContext"][field] = spec[field].take();
    }
    if spec["serviceAccountName"].as_str().unwrap_or_default().is_empty() {
        spec["serviceAccountName"] = spec["serviceAccount"].take();
    }
    if spec["terminationGracePeriodSeconds"].as_i64().is_some_and(|seconds| seconds < 0) {
        spec["terminationGracePeriodSeconds"] = json!(1);
    }
    let status = &mut pod["status"];
    if status["podIP"].as_str().is_some_and(|ip| !ip.is_empty())
        && status["podIP"] != status["podIPs"][0]["ip"]
    {
        status["podIPs"] = json!([{ "ip": status["podIP"] }]);
    }
    pod
}

/// Prints values the way Go's spew does with `%#v`, methods off and keys sorted.
struct Printer<'a> {
    types: &'a Types,
    out: &'a mut dyn Write,
}

impl Printer<'_> {
    /// A value with its type in front.
    fn typed(&mut self, ty: &str, value: &Value) -> fmt::Result {
        write!(self.out, "({ty})")?;
        self.bare(ty, value)
    }

    /// A value alone. What is absent is null, and prints as Go's zero value.
    fn bare(&mut self, ty: &str, value: &Value) -> fmt::Result {
        match self.types.shape(ty) {
            Shape::Pointer(inner) | Shape::Alias(inner) => match value {
                Value::Null if ty.starts_with('*') => self.out.write_str("<nil>"),
                value => self.bare(inner, value),
            },
            Shape::Slice(inner) => match value.as_array() {
                None => self.out.write_str("<nil>"),
                Some(items) => {
                    self.list("[", items.iter(), |printer, item| printer.bare(inner, item))
                }
            },
            Shape::Map(inner) => match value.as_object() {
                None => self.out.write_str("<nil>"),
                Some(entries) => {
                    let mut entries: Vec<_> = entries.iter().collect();
                    entries.sort_unstable_by_key(|(key, _)| key.as_str());
                    self.list("map[", entries.into_iter(), |printer, (key, value)| {
                        write!(printer.out, "{key}:")?;
                        match inner {
                            // The quantities of a map are resources, which are counted in thousandths.
                            "resource.Quantity" => printer.quantity(value, Quantity::rounded),
                            inner => printer.bare(inner, value),
                        }
                    })
                }
            },
            Shape::Struct(fields) => {
                for (index, field) in fields.iter().enumerate() {
                    let separator = if index == 0 { '{' } else { ' ' };
                    write!(self.out, "{separator}{}:", field.name)?;
                    match field.json.as_ref() {
                        "." => self.typed(field.ty, value)?,
                        "-" => self.typed(field.ty, &Value::Null)?,
                        json => self.typed(field.ty, &value[json])?,
                    }
                }
                self.out.write_char('}')
            }
            Shape::Other => self.scalar(ty, value),
        }
    }

    fn scalar(&mut self, ty: &str, value: &Value) -> fmt::Result {
        match ty {
            "string" => self.out.write_str(value.as_str().unwrap_or_default()),
            "bool" => write!(self.out, "{}", value.as_bool().unwrap_or_default()),
            "resource.Quantity" => self.quantity(value, |quantity| quantity),
            "intstr.IntOrString" => {
                let (kind, text) =
                    (value.as_str().map_or(0, |_| 1), value.as_str().unwrap_or_default());
                let number = value.as_i64().unwrap_or_default();
                write!(
                    self.out,
                    "{{Type:(intstr.Type){kind} IntVal:(int32){number} StrVal:(string){text}}}"
                )
            }
            "v1.Time" => match value.as_str() {
                Some(moment) => self.out.write_str(moment),
                None => self.out.write_str(
                    "{Time:(time.Time){wall:(uint64)0 ext:(int64)0 loc:(*time.Location)<nil>}}",
                ),
            },
            "v1.FieldsV1" => write!(self.out, "{value}"),
            _ => write!(self.out, "{}", value.as_i64().unwrap_or_default()),
        }
    }

    fn quantity(&mut self, value: &Value, as_kept: fn(Quantity) -> Quantity) -> fmt::Result {
        let quantity = value.as_str().and_then(Quantity::parse).unwrap_or_default();
        write!(self.out, "{}", as_kept(quantity))
    }

    fn list<T>(
        &mut self,
        open: &str,
        items: impl Iterator<Item = T>,
        mut print: impl FnMut(&mut Self, T) -> fmt::Result,
    ) -> fmt::Result {
        self.out.write_str(open)?;
        for (index, item) in items.enumerate() {
            if index > 0 {
                self.out.write_char(' ')?;
            }
            print(self, item)?;
        }
        self.out.write_char(']')
    }
}

#[cfg(test)]
mod tests;
