//! Questions to an authorizer.

use std::sync::Arc;

use super::opaque::{Attributes, Opaque};
use super::{Found, Function};
use crate::Error;
use crate::runtime::value::Value;

pub(super) fn named(name: &str) -> Option<Function> {
    Some(match name {
        "path" => |_, args| {
            let path = text(args)?;
            if path.trim().is_empty() {
                return Err(Error::new("path must not be empty"));
            }
            start(args, |attributes| attributes.path = Some(path))
        },
        "group" => |_, args| {
            let group = text(args)?;
            start(args, |attributes| {
                attributes.group = group;
                attributes.of_group = true;
            })
        },
        "serviceAccount" => |_, args| match args {
            [Value::Opaque(opaque), Value::String(namespace), Value::String(name)] => {
                let Opaque::Authorizer(authorizer, _) = &**opaque else {
                    return Err(Error::no_such_overload());
                };
                if name.is_empty() {
                    return Err(Error::new("Invalid service account name"));
                }
                if namespace.is_empty() {
                    return Err(Error::new("Invalid service account namespace"));
                }
                let account = Some((namespace.to_string(), name.to_string()));
                Ok(made(Opaque::Authorizer(authorizer.clone(), account)))
            }
            _ => Err(Error::no_such_overload()),
        },
        "resource" => |_, args| {
            let resource = text(args)?;
            if resource.trim().is_empty() {
                return Err(Error::new("resource must not be empty"));
            }
            refine(args, |attributes| {
                attributes.resource = resource;
                attributes.of_group = false;
            })
        },
        "subresource" => |_, args| refine_text(args, |attributes| &mut attributes.subresource),
        "namespace" => |_, args| refine_text(args, |attributes| &mut attributes.namespace),
        "name" => |_, args| refine_text(args, |attributes| &mut attributes.name),
        "fieldSelector" => |_, args| {
            let selector = text(args)?;
            refine(args, |attributes| attributes.field_selector = Some(selector))
        },
        "labelSelector" => |_, args| {
            let selector = text(args)?;
            refine(args, |attributes| attributes.label_selector = Some(selector))
        },
        "check" => |_, args| {
            let verb = text(args)?;
            match args {
                [Value::Opaque(opaque), ..] => match &**opaque {
                    Opaque::Check(authorizer, attributes) => {
                        let attributes = Attributes { verb, ..(**attributes).clone() };
                        Ok(made(Opaque::Decision(authorizer.authorize(&attributes))))
                    }
                    _ => Err(Error::no_such_overload()),
                },
                _ => Err(Error::no_such_overload()),
            }
        },
        "errored" => |_, args| decided(args, |decision| Value::Bool(decision.error.is_some())),
        "error" => |_, args| {
            decided(args, |decision| Value::text(decision.error.clone().unwrap_or_default()))
        },
        "allowed" => |_, args| decided(args, |decision| Value::Bool(decision.allowed)),
        "reason" => |_, args| decided(args, |decision| Value::text(decision.reason.clone())),
        _ => return None,
    })
}

fn made<'v>(opaque: Opaque) -> Value<'v> {
    Value::Opaque(Arc::new(opaque))
}

fn text(args: &[Value<'_>]) -> Result<String, Error> {
    match args {
        [_, Value::String(text)] => Ok(text.to_string()),
        _ => Err(Error::no_such_overload()),
    }
}

fn start<'v>(args: &[Value<'v>], with: impl FnOnce(&mut Attributes)) -> Found<'v> {
    let Some(Value::Opaque(opaque)) = args.first() else { return Err(Error::no_such_overload()) };
    let Opaque::Authorizer(authorizer, account) = &**opaque else {
        return Err(Error::no_such_overload());
    };
    let mut attributes = Attributes { service_account: account.clone(), ..Attributes::default() };
    with(&mut attributes);
    Ok(made(Opaque::Check(authorizer.clone(), Box::new(attributes))))
}

fn refine<'v>(args: &[Value<'v>], with: impl FnOnce(&mut Attributes)) -> Found<'v> {
    let Some(Value::Opaque(opaque)) = args.first() else { return Err(Error::no_such_overload()) };
    let Opaque::Check(authorizer, attributes) = &**opaque else {
        return Err(Error::no_such_overload());
    };
    let mut attributes = attributes.clone();
    with(&mut attributes);
    Ok(made(Opaque::Check(authorizer.clone(), attributes)))
}

fn refine_text<'v>(args: &[Value<'v>], of: fn(&mut Attributes) -> &mut String) -> Found<'v> {
    let given = text(args)?;
    refine(args, |attributes| *of(attributes) = given)
}

fn decided<'v>(
    args: &[Value<'v>],
    with: impl FnOnce(&super::opaque::Decision) -> Value<'v>,
) -> Found<'v> {
    match args {
        [Value::Opaque(opaque)] => match &**opaque {
            Opaque::Decision(decision) => Ok(with(decision)),
            _ => Err(Error::no_such_overload()),
        },
        _ => Err(Error::no_such_overload()),
    }
}
