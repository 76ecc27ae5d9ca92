//! `/configz`: the current configuration, without secrets.

use std::sync::Arc;

use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;
use longshore_config::KubeletConfiguration;
use serde_json::{Value, json};

/// Replaces secrets.
const MASK: &str = "<masked>";

pub(super) fn routes(settings: &KubeletConfiguration) -> Router {
    let text: Arc<str> = document(settings).to_string().into();
    let headers =
        [(header::CONTENT_TYPE, "application/json"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    Router::new().route("/configz", get(async move || (headers, text.to_string()).into_response()))
}

/// The versioned configuration, under upstream's key.
fn document(settings: &KubeletConfiguration) -> Value {
    let mut config = json!(settings);
    if let Some(headers) = config["staticPodURLHeader"].as_object_mut() {
        headers.values_mut().for_each(|values| *values = json!([MASK]));
    }
    drop_empty(&mut config);
    config["kind"] = json!("KubeletConfiguration");
    config["apiVersion"] = json!("kubelet.config.k8s.io/v1beta1");
    json!({"kubeletconfig": config})
}

/// Removes empty values, as Go's `omitempty`, except for `false` and 0.
fn drop_empty(value: &mut Value) {
    let Value::Object(fields) = value else { return };
    fields.values_mut().for_each(drop_empty);
    fields.retain(|_, value| match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => true,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configz_redacts_secrets() {
        let mut settings = KubeletConfiguration::default();
        let secret = vec!["Bearer planted".to_owned(), "planted".to_owned()];
        settings.static_pod_url_header.insert("Authorization".to_owned(), secret);
        let document = document(&settings);
        let config = &document["kubeletconfig"];
        assert_eq!(config["kind"], "KubeletConfiguration");
        assert_eq!(config["syncFrequency"], "1m0s");
        assert_eq!(config["failSwapOn"], true);
        assert_eq!(config["authentication"]["anonymous"]["enabled"], false);
        assert_eq!(config["staticPodURLHeader"]["Authorization"], json!([MASK]));
        assert!(config.get("tlsCertFile").is_none() && config.get("tracing").is_none());
        assert!(!document.to_string().contains("planted"));
    }

    #[test]
    fn configz_is_a_valid_configuration() {
        let settings = KubeletConfiguration::default();
        let mut config = document(&settings)["kubeletconfig"].take();
        for field in ["kind", "apiVersion"] {
            config.as_object_mut().unwrap().remove(field);
        }
        let read: KubeletConfiguration = serde_json::from_value(config).unwrap();
        assert_eq!(read, settings);
    }
}
