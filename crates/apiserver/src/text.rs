//! The text of an answer, with parts that are held elsewhere: a list consists of stored values, which
//! are copied when they are sent and not before. So a long list takes no memory of its own.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};

/// Parts that are shorter are copied at once: to keep track of them costs as much.
const COPIED: usize = 128;
/// From this much on, what a text has reserved beyond its end is given back. To give back less
/// costs more than it is worth: the next text would have to take it from the kernel again.
const SPARE: usize = 1 << 20;

/// A text in the making.
#[derive(Debug, Default)]
pub(crate) struct TextBuilder {
    /// What is written, without the shared parts.
    written: Vec<u8>,
    /// Parts, and where in `written` they come, in their order.
    shared: VecDeque<(usize, Bytes)>,
    shared_length: usize,
}

impl TextBuilder {
    /// Where text is written to.
    pub(crate) fn written(&mut self) -> &mut Vec<u8> {
        &mut self.written
    }

    /// Goes on with this part.
    pub(crate) fn push(&mut self, part: Bytes) {
        if part.len() < COPIED {
            return self.written.extend_from_slice(&part);
        }
        self.shared_length = self.shared_length.saturating_add(part.len());
        self.shared.push_back((self.written.len(), part));
    }

    /// The length of the text so far, in bytes.
    pub(crate) fn len(&self) -> usize {
        self.written.len().saturating_add(self.shared_length)
    }

    pub(crate) fn finish(mut self) -> Text {
        if self.written.capacity().saturating_sub(self.written.len()) >= SPARE {
            self.written.shrink_to_fit();
        }
        Text { left: self.len(), written: self.written.into(), shared: self.shared, taken: 0 }
    }
}

/// A text, or what is left of it.
#[derive(Debug, Default)]
pub(crate) struct Text {
    written: Bytes,
    shared: VecDeque<(usize, Bytes)>,
    /// How much of what was written has been taken.
    taken: usize,
    /// How much is left of all.
    left: usize,
}

impl<T: Into<Bytes>> From<T> for Text {
    fn from(text: T) -> Text {
        let written = text.into();
        Text { left: written.len(), written, shared: VecDeque::new(), taken: 0 }
    }
}

impl Text {
    /// In bytes.
    pub(crate) fn len(&self) -> usize {
        self.left
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// Takes the next part of the text: of so many bytes, if that much is left.
    pub(crate) fn take(&mut self, length: usize) -> Bytes {
        let length = length.min(self.left);
        self.left = self.left.saturating_sub(length);
        if self.shared.is_empty() {
            return self.written.split_to(length);
        }
        let mut part = BytesMut::with_capacity(length);
        while let Some(remaining) =
            length.checked_sub(part.len()).filter(|remaining| *remaining > 0)
        {
            let until = match self.shared.front() {
                Some((position, _)) => position.saturating_sub(self.taken),
                None => self.written.len(),
            };
            match self.shared.front_mut() {
                Some((_, shared)) if until == 0 => {
                    move_to(&mut part, shared, remaining);
                    if shared.is_empty() {
                        self.shared.pop_front();
                    }
                }
                _ => {
                    let moved = move_to(&mut part, &mut self.written, remaining.min(until));
                    self.taken = self.taken.saturating_add(moved);
                }
            }
        }
        part.freeze()
    }

    /// The whole text in one piece.
    pub(crate) fn join(&mut self) -> &Bytes {
        if !self.shared.is_empty() {
            self.written = self.take(self.left);
            self.taken = 0;
            self.left = self.written.len();
        }
        &self.written
    }
}

/// Appends at most so many bytes from the start of `from`, and gives how many.
fn move_to(part: &mut BytesMut, from: &mut Bytes, most: usize) -> usize {
    let length = from.len().min(most);
    part.extend_from_slice(from.get(..length).unwrap_or_default());
    from.advance(length);
    length
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, clippy::indexing_slicing, reason = "sizes of a test")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text_of(pieces: &[(bool, Vec<u8>)]) -> Text {
        let mut builder = TextBuilder::default();
        for (is_shared, piece) in pieces {
            match is_shared {
                true => builder.push(piece.clone().into()),
                false => builder.written().extend_from_slice(piece),
            }
        }
        let length = pieces.iter().map(|(_, piece)| piece.len()).sum::<usize>();
        assert_eq!(builder.len(), length);
        builder.finish()
    }

    proptest! {
        #[test]
        fn text_is_the_same_in_parts_of_any_size_and_joined(
            pieces in prop::collection::vec(
                (any::<bool>(), prop::collection::vec(any::<u8>(), 0..3 * COPIED)), 0..12),
            sizes in prop::collection::vec(1..4 * COPIED, 1..8),
        ) {
            let whole: Vec<u8> = pieces.iter().flat_map(|(_, piece)| piece.clone()).collect();
            let (mut joined, mut text) = (text_of(&pieces), text_of(&pieces));
            prop_assert_eq!(joined.join(), &whole);
            let mut taken = Vec::new();
            for size in sizes.iter().cycle() {
                prop_assert_eq!(text.len(), whole.len() - taken.len());
                if text.is_empty() {
                    break;
                }
                let part = text.take(*size);
                prop_assert_eq!(part.len(), (*size).min(whole.len() - taken.len()));
                taken.extend_from_slice(&part);
                let mut rest = text_of(&pieces);
                rest.take(taken.len());
                prop_assert_eq!(&rest.join()[..], &whole[taken.len()..]);
            }
            prop_assert_eq!(taken, whole);
            prop_assert!(text.take(1).is_empty());
        }
    }

    #[test]
    fn text_does_not_copy_long_parts_before_they_are_taken() {
        let part = Bytes::from(vec![b'x'; COPIED]);
        let mut builder = TextBuilder::default();
        builder.push(part.clone());
        builder.push(part.slice(1..));
        assert_eq!((builder.written().len(), builder.shared.len()), (COPIED - 1, 1));
        assert!(std::ptr::eq(builder.shared[0].1.as_ptr(), part.as_ptr()));
    }
}
