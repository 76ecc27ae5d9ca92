//! The protobuf format of profiles (`perftools.profiles.Profile`), as far as these profiles use it.

use std::collections::HashMap;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ValueType {
    pub(super) kind: &'static str,
    pub(super) unit: &'static str,
}

/// What was measured in one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    /// Names, the innermost first.
    pub(super) stack: Vec<String>,
    /// One for each type of the profile.
    pub(super) values: Vec<i64>,
}

/// A profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Profile {
    pub(super) types: Vec<ValueType>,
    pub(super) samples: Vec<Sample>,
    /// What lies between two samples.
    pub(super) period: Option<(ValueType, i64)>,
    /// Nanoseconds since 1970.
    pub(super) at: i64,
    /// Nanoseconds.
    pub(super) duration: i64,
}

/// Texts by number; that of number 0 is empty.
#[derive(Default)]
struct Texts {
    all: Vec<String>,
    numbers: HashMap<String, u64>,
}

impl Texts {
    fn number(&mut self, text: &str) -> u64 {
        if text.is_empty() {
            return 0;
        }
        if let Some(known) = self.numbers.get(text) {
            return *known;
        }
        self.all.push(text.to_owned());
        let number = self.all.len() as u64;
        self.numbers.insert(text.to_owned(), number);
        number
    }
}

impl Profile {
    /// The profile as a message.
    pub(super) fn encode(&self) -> Vec<u8> {
        let (mut own, mut texts) = (Message::default(), Texts::default());
        // names of functions; each is one function, and one location
        let mut functions = Texts::default();
        for kind in &self.types {
            own.message(1, kind.encode(&mut texts));
        }
        for sample in &self.samples {
            let mut message = Message::default();
            let stack = sample.stack.iter().map(|name| functions.number(name));
            message.packed(1, stack);
            message.packed(2, sample.values.iter().map(|value| value.cast_unsigned()));
            own.message(2, message);
        }
        for (number, name) in (1..).zip(&functions.all) {
            let (mut line, mut location, mut function) =
                (Message::default(), Message::default(), Message::default());
            line.number(1, number);
            location.number(1, number);
            location.message(4, line);
            own.message(4, location);
            function.number(1, number);
            let text = texts.number(name);
            function.number(2, text);
            function.number(3, text);
            own.message(5, function);
        }
        let period = self.period.map(|(kind, period)| (kind.encode(&mut texts), period));
        own.bytes(6, b"");
        texts.all.iter().for_each(|text| own.bytes(6, text.as_bytes()));
        own.number(9, self.at.cast_unsigned());
        own.number(10, self.duration.cast_unsigned());
        if let Some((kind, period)) = period {
            own.message(11, kind);
            own.number(12, period.cast_unsigned());
        }
        own.0
    }
}

impl ValueType {
    fn encode(self, texts: &mut Texts) -> Message {
        let mut message = Message::default();
        message.number(1, texts.number(self.kind));
        message.number(2, texts.number(self.unit));
        message
    }
}

/// A message that is being written.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push((value as u8 & 0x7f) | 0x80);
            value = value.wrapping_shr(7);
        }
        self.0.push(value as u8);
    }

    fn number(&mut self, field: u8, value: u64) {
        self.varint((field << 3).into());
        self.varint(value);
    }

    fn bytes(&mut self, field: u8, bytes: &[u8]) {
        self.varint(((field << 3) | 2).into());
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn message(&mut self, field: u8, message: Message) {
        self.bytes(field, &message.0);
    }

    fn packed(&mut self, field: u8, values: impl Iterator<Item = u64>) {
        let mut packed = Message::default();
        values.for_each(|value| packed.varint(value));
        self.message(field, packed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiling_format_is_that_of_pprof() {
        let count = ValueType { kind: "n", unit: "count" };
        let sample = |stack: &[&str], value| Sample {
            stack: stack.iter().map(|name| (*name).to_owned()).collect(),
            values: vec![value],
        };
        let profile = Profile {
            types: vec![count],
            samples: vec![sample(&["f", "g"], 300), sample(&["g"], 1)],
            ..Profile::default()
        };
        let expected: &[&[u8]] = &[
            // the type: texts 1 and 2
            &[0x0a, 4, 0x08, 1, 0x10, 2],
            // f in g: 300
            &[0x12, 8, 0x0a, 2, 1, 2, 0x12, 2, 0xac, 0x02],
            &[0x12, 6, 0x0a, 1, 2, 0x12, 1, 1],
            // locations and functions
            &[0x22, 6, 0x08, 1, 0x22, 2, 0x08, 1],
            &[0x2a, 6, 0x08, 1, 0x10, 3, 0x18, 3],
            &[0x22, 6, 0x08, 2, 0x22, 2, 0x08, 2],
            &[0x2a, 6, 0x08, 2, 0x10, 4, 0x18, 4],
            b"\x32\x00\x32\x01n\x32\x05count\x32\x01f\x32\x01g",
            &[0x48, 0, 0x50, 0],
        ];
        assert_eq!(profile.encode(), expected.concat());
    }
}
