//! What the text of an object of Kubernetes says of itself.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

/// An object's text, of which only this is read. The syntax of all of it is checked.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Object<'t> {
    /// Its apiVersion.
    #[serde(borrow)]
    pub api_version: Cow<'t, str>,
    /// Its kind.
    #[serde(borrow)]
    pub kind: Cow<'t, str>,
    #[serde(borrow)]
    metadata: &'t RawValue,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata<'t> {
    #[serde(borrow)]
    name: Cow<'t, str>,
    resource_version: Option<IgnoredAny>,
}

impl<'t> Object<'t> {
    /// `None`: the text is not that of an object with metadata.
    #[must_use]
    pub fn read(text: &'t [u8]) -> Option<Object<'t>> {
        // skipped strings are not checked by the parser
        serde_json::from_str(std::str::from_utf8(text).ok()?).ok()
    }

    /// Where in `text`, from which this was read, the fields of its metadata begin. `None`: it has no
    /// name, or a resourceVersion already.
    #[must_use]
    pub fn start_of_metadata(&self, text: &[u8]) -> Option<usize> {
        let metadata = self.metadata.get();
        let known: Metadata<'_> = serde_json::from_str(metadata).ok()?;
        if known.name.is_empty() || known.resource_version.is_some() || !metadata.starts_with('{') {
            return None;
        }
        let start = metadata.as_ptr().addr().checked_sub(text.as_ptr().addr())?.checked_add(1)?;
        (start < text.len()).then_some(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_found_where_it_is() {
        let table = [
            (r#"{"metadata":{"name":"a"},"kind":"K","apiVersion":"v1"}"#, Some(13)),
            (
                r#"{"apiVersion":"v1", "kind": "K", "data": {"metadata": {"name": "b"}}, "metadata" : { "name":"a"}}"#,
                Some(84),
            ),
            (r#"{"apiVersion":"v1","kind":"K","metadata":{"name":""}}"#, None),
            (r#"{"apiVersion":"v1","kind":"K","metadata":{}}"#, None),
            (
                r#"{"apiVersion":"v1","kind":"K","metadata":{"name":"a","resourceVersion":"1"}}"#,
                None,
            ),
            (r#"{"apiVersion":"v1","kind":"K","metadata":["a"]}"#, None),
        ];
        for (text, wanted) in table {
            let object = Object::read(text.as_bytes()).unwrap_or_else(|| unreachable!("{text}"));
            assert_eq!((&*object.api_version, &*object.kind), ("v1", "K"));
            assert_eq!(object.start_of_metadata(text.as_bytes()), wanted, "{text}");
        }
        for text in [
            r#"{"kind":"K","metadata":{"name":"a"}}"#,
            r#"{"apiVersion":"v1","kind":"K","metadata":{"name":"a"},"data":{]}"#,
            r#"{"apiVersion":"v1","kind":"K","metadata":{"name":"a"}}}"#,
            r#"{"apiVersion":"v1","kind":"K","metadata":{"name":"a"},"metadata":{"name":"b"}}"#,
            "",
        ] {
            assert!(Object::read(text.as_bytes()).is_none(), "{text}");
        }
    }

    #[test]
    fn texts_that_are_not_utf_8_are_refused() {
        let text =
            b"{\"apiVersion\":\"v1\",\"kind\":\"K\",\"metadata\":{\"name\":\"a\"},\"d\":\"\xff\"}";
        assert!(Object::read(text).is_none());
    }
}
