//! Environment variables of a service.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::Service;

use super::Variables;

/// Address and ports of a service.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    address: Box<str>,
    /// At least one.
    ports: Box<[Port]>,
}

#[derive(Clone, Debug)]
struct Port {
    number: i32,
    /// Empty if it has none.
    name: Box<str>,
    /// In lower case.
    protocol: Box<str>,
}

impl Entry {
    /// The entry of a service; `None` if it has no cluster IP.
    pub(super) fn of(service: &Service) -> Option<Self> {
        let spec = service.spec.as_ref()?;
        let address = spec.cluster_ip.as_deref().filter(|ip| !ip.is_empty() && *ip != "None")?;
        let ports: Box<[Port]> = spec
            .ports
            .iter()
            .flatten()
            .map(|port| Port {
                number: port.port,
                name: port.name.as_deref().unwrap_or_default().into(),
                protocol: port.protocol.as_deref().unwrap_or("TCP").to_lowercase().into(),
            })
            .collect();
        (!ports.is_empty()).then(|| Self { address: address.into(), ports })
    }

    /// The minimum size of the variables of the service of that name: for each port, four that
    /// start with the name.
    pub(super) fn min_bytes(&self, name: &str) -> usize {
        const LINK: usize = "_PORT_1_TCP_PROTO=tcp".len();
        self.ports.len() * 4 * (name.len() + LINK)
    }

    /// Add the variables of the service of that name.
    pub(super) fn add_to(&self, name: &str, variables: &mut Variables) {
        let name = variable(name);
        let mut set = |variable: String, value: String| variables.insert(variable, value);
        set(format!("{name}_SERVICE_HOST"), self.address.to_string());
        for (index, port) in self.ports.iter().enumerate() {
            let (number, protocol) = (port.number, &*port.protocol);
            let url = format!("{protocol}://{}", self.with_port(number));
            if index == 0 {
                set(format!("{name}_SERVICE_PORT"), number.to_string());
                set(format!("{name}_PORT"), url.clone());
            }
            if !port.name.is_empty() {
                set(format!("{name}_SERVICE_PORT_{}", variable(&port.name)), number.to_string());
            }
            // Variables in the format of Docker links.
            let link = format!("{name}_PORT_{number}_{}", protocol.to_uppercase());
            set(format!("{link}_PROTO"), protocol.to_owned());
            set(format!("{link}_PORT"), number.to_string());
            set(format!("{link}_ADDR"), self.address.to_string());
            set(link, url);
        }
    }

    fn with_port(&self, port: i32) -> String {
        match self.address.parse() {
            Ok(IpAddr::V6(address)) => format!("[{address}]:{port}"),
            _ => format!("{}:{port}", self.address),
        }
    }
}

fn variable(name: &str) -> String {
    name.to_uppercase().replace('-', "_")
}
