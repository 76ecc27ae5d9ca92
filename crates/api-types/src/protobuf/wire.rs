//! The protobuf wire format: numbered fields, whatever they mean.

use serde::de::Error as _;

/// Why bytes cannot be read as what they should be.
pub type Fault = serde::de::value::Error;
/// Of reading or writing a message.
pub type Result<T, E = Fault> = std::result::Result<T, E>;

/// The field of this number that counts: the last one.
pub fn last(bytes: &[u8], number: u32) -> Result<Option<Wire<'_>>> {
    let mut found = None;
    for field in Fields(bytes) {
        let (at, wire) = field?;
        if at == number {
            found = Some(wire);
        }
    }
    Ok(found)
}

/// A field's value as it travels.
#[derive(Clone, Copy, Debug)]
pub enum Wire<'a> {
    /// A varint.
    Number(u64),
    /// A number of a fixed size.
    Fixed(u64),
    /// A text, bytes or a message.
    Bytes(&'a [u8]),
}

impl<'a> Wire<'a> {
    /// Its bytes.
    pub fn bytes(self) -> Result<&'a [u8]> {
        match self {
            Wire::Bytes(bytes) => Ok(bytes),
            _ => Err(self.mismatch()),
        }
    }

    /// Its text.
    pub fn text(self) -> Result<&'a str> {
        std::str::from_utf8(self.bytes()?).map_err(Fault::custom)
    }

    /// Negative numbers travel as their two's complement.
    pub fn number(self) -> Result<i64> {
        match self {
            Wire::Number(number) => Ok(number.cast_signed()),
            _ => Err(self.mismatch()),
        }
    }

    /// A number of 64 bits with a fraction.
    pub fn double(self) -> Result<f64> {
        match self {
            Wire::Fixed(bits) => Ok(f64::from_bits(bits)),
            _ => Err(self.mismatch()),
        }
    }

    fn mismatch(self) -> Fault {
        let found = match self {
            Wire::Number(_) => "a number",
            Wire::Fixed(_) => "a fixed-size number",
            Wire::Bytes(_) => "bytes",
        };
        Fault::custom(format_args!("{found} cannot be its value"))
    }
}

/// The fields of a message, up to the first fault.
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Wire<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = field(&mut self.0);
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

fn field<'a>(bytes: &mut &'a [u8]) -> Result<(u32, Wire<'a>)> {
    let key = varint(bytes)?;
    let number = u32::try_from(key >> 3).map_err(Fault::custom)?;
    let wire = match key & 7 {
        0 => Wire::Number(varint(bytes)?),
        1 => Wire::Fixed(fixed(bytes, 8)?),
        2 => {
            let length = usize::try_from(varint(bytes)?).map_err(Fault::custom)?;
            Wire::Bytes(take(bytes, length)?)
        }
        5 => Wire::Fixed(fixed(bytes, 4)?),
        other => return Err(Fault::custom(format_args!("unknown wire type {other}"))),
    };
    Ok((number, wire))
}

/// Takes a varint from the front.
pub fn varint(bytes: &mut &[u8]) -> Result<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let [byte, rest @ ..] = *bytes else { return Err(too_short()) };
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(Fault::custom("a number of more than 64 bits"))
}

fn fixed(bytes: &mut &[u8], size: usize) -> Result<u64> {
    let little_endian = take(bytes, size)?;
    Ok(little_endian.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Result<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(length).ok_or_else(too_short)?;
    *bytes = rest;
    Ok(taken)
}

fn too_short() -> Fault {
    Fault::custom("unexpected EOF")
}

/// A message that is being written.
#[derive(Debug, Default)]
pub struct Writer(pub(crate) Vec<u8>);

impl Writer {
    fn key(&mut self, number: u32, wire_type: u64) {
        self.varint(u64::from(number) << 3 | wire_type);
    }

    fn varint(&mut self, number: u64) {
        let (digits, length) = digits(number);
        self.0.extend(digits.into_iter().take(length));
    }

    /// What was written.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Negative numbers travel as their two's complement.
    pub fn number(&mut self, number: u32, value: i64) {
        self.key(number, 0);
        self.varint(value.cast_unsigned());
    }

    /// Writes a number of 64 bits with a fraction.
    pub fn double(&mut self, number: u32, value: f64) {
        self.key(number, 1);
        self.0.extend(value.to_bits().to_le_bytes());
    }

    /// Writes a text, bytes or a message.
    pub fn bytes(&mut self, number: u32, value: &[u8]) {
        self.key(number, 2);
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
    }

    /// A field whose bytes `write` writes.
    pub fn nested<T>(
        &mut self,
        number: u32,
        write: impl FnOnce(&mut Writer) -> Result<T>,
    ) -> Result<T> {
        self.key(number, 2);
        let start = self.0.len();
        // most messages are so short that their length has one digit
        self.0.push(0);
        let written = write(self)?;
        let length = self.0.len().saturating_sub(start).saturating_sub(1);
        let (digits, count) = digits(length as u64);
        self.0.splice(start..=start, digits.into_iter().take(count));
        Ok(written)
    }
}

/// The digits of a number to the base of 128, the lowest first, and how many there are.
fn digits(mut number: u64) -> ([u8; 10], usize) {
    let (mut digits, mut count) = ([0; 10], 0);
    for digit in &mut digits {
        count += 1;
        // the lowest seven bits
        *digit = number.to_le_bytes()[0] & 0x7f;
        number >>= 7;
        if number == 0 {
            break;
        }
        *digit |= 0x80;
    }
    (digits, count)
}
