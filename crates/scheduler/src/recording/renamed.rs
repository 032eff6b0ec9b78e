//! Writes any value with other words: a serializer around another one.
//!
//! Only strings of the value are words. Names of types, fields and variants stay, and what a type writes of itself as a text, such as a
//! duration.

use std::borrow::Cow;

use serde::ser::{
    Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

/// What becomes of words.
pub trait Words {
    /// Returns whether words in this field of this type are of another kind: passed with `apart`.
    fn is_apart(&self, of: &'static str, field: &'static str) -> bool;

    fn word<'a>(&self, word: &'a str, apart: bool) -> Cow<'a, str>;
}

/// A value that is written with other words.
pub struct Renamed<'a, T: ?Sized, W> {
    value: &'a T,
    words: &'a W,
    apart: bool,
}

impl<'a, T: ?Sized, W: Words> Renamed<'a, T, W> {
    pub fn new(value: &'a T, words: &'a W) -> Self {
        Renamed { value, words, apart: false }
    }
}

impl<T: Serialize + ?Sized, W: Words> Serialize for Renamed<'_, T, W> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(Renamer { inner: serializer, words: self.words, apart: self.apart })
    }
}

struct Renamer<'a, S, W> {
    inner: S,
    words: &'a W,
    apart: bool,
}

/// A value with parts that is being written.
struct Parts<'a, P, W> {
    inner: P,
    words: &'a W,
    apart: bool,
    /// Name of its type.
    of: &'static str,
}

macro_rules! as_it_is {
    ($($method:ident($type:ty)),* $(,)?) => {
        $(fn $method(self, value: $type) -> Result<S::Ok, S::Error> {
            self.inner.$method(value)
        })*
    };
}

macro_rules! in_parts {
    ($($method:ident($($argument:ident: $type:ty),*) of $of:expr => $parts:ident),* $(,)?) => {
        $(fn $method(self, $($argument: $type),*) -> Result<Self::$parts, S::Error> {
            let Renamer { inner, words, apart } = self;
            Ok(Parts { inner: inner.$method($($argument),*)?, words, apart, of: $of })
        })*
    };
}

impl<'a, S: Serializer, W: Words> Serializer for Renamer<'a, S, W> {
    type Ok = S::Ok;
    type Error = S::Error;
    type SerializeSeq = Parts<'a, S::SerializeSeq, W>;
    type SerializeTuple = Parts<'a, S::SerializeTuple, W>;
    type SerializeTupleStruct = Parts<'a, S::SerializeTupleStruct, W>;
    type SerializeTupleVariant = Parts<'a, S::SerializeTupleVariant, W>;
    type SerializeMap = Parts<'a, S::SerializeMap, W>;
    type SerializeStruct = Parts<'a, S::SerializeStruct, W>;
    type SerializeStructVariant = Parts<'a, S::SerializeStructVariant, W>;

    as_it_is!(
        serialize_bool(bool),
        serialize_i8(i8),
        serialize_i16(i16),
        serialize_i32(i32),
        serialize_i64(i64),
        serialize_i128(i128),
        serialize_u8(u8),
        serialize_u16(u16),
        serialize_u32(u32),
        serialize_u64(u64),
        serialize_u128(u128),
        serialize_f32(f32),
        serialize_f64(f64),
        serialize_char(char),
        serialize_bytes(&[u8]),
        serialize_unit_struct(&'static str),
    );

    in_parts!(
        serialize_seq(length: Option<usize>) of "" => SerializeSeq,
        serialize_tuple(length: usize) of "" => SerializeTuple,
        serialize_tuple_struct(of: &'static str, length: usize) of of => SerializeTupleStruct,
        serialize_tuple_variant(of: &'static str, index: u32, variant: &'static str, length: usize) of of
            => SerializeTupleVariant,
        serialize_map(length: Option<usize>) of "" => SerializeMap,
        serialize_struct(of: &'static str, length: usize) of of => SerializeStruct,
        serialize_struct_variant(of: &'static str, index: u32, variant: &'static str, length: usize) of of
            => SerializeStructVariant,
    );

    fn serialize_str(self, value: &str) -> Result<S::Ok, S::Error> {
        self.inner.serialize_str(&self.words.word(value, self.apart))
    }

    fn collect_str<T: std::fmt::Display + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        self.inner.collect_str(value)
    }

    fn serialize_none(self) -> Result<S::Ok, S::Error> {
        self.inner.serialize_none()
    }

    fn serialize_unit(self) -> Result<S::Ok, S::Error> {
        self.inner.serialize_unit()
    }

    fn serialize_unit_variant(
        self,
        of: &'static str,
        index: u32,
        variant: &'static str,
    ) -> Result<S::Ok, S::Error> {
        self.inner.serialize_unit_variant(of, index, variant)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        let Renamer { inner, words, apart } = self;
        inner.serialize_some(&Renamed { value, words, apart })
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        of: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        let Renamer { inner, words, apart } = self;
        inner.serialize_newtype_struct(of, &Renamed { value, words, apart })
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        of: &'static str,
        index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        let Renamer { inner, words, apart } = self;
        inner.serialize_newtype_variant(of, index, variant, &Renamed { value, words, apart })
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

macro_rules! of_unnamed_parts {
    ($($trait:ident::$method:ident),* $(,)?) => {
        $(impl<P: $trait, W: Words> $trait for Parts<'_, P, W> {
            type Ok = P::Ok;
            type Error = P::Error;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), P::Error> {
                self.inner.$method(&Renamed { value, words: self.words, apart: self.apart })
            }

            fn end(self) -> Result<P::Ok, P::Error> {
                self.inner.end()
            }
        })*
    };
}

of_unnamed_parts!(
    SerializeSeq::serialize_element,
    SerializeTuple::serialize_element,
    SerializeTupleStruct::serialize_field,
    SerializeTupleVariant::serialize_field,
);

macro_rules! of_fields {
    ($($trait:ident),* $(,)?) => {
        $(impl<P: $trait, W: Words> $trait for Parts<'_, P, W> {
            type Ok = P::Ok;
            type Error = P::Error;

            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                key: &'static str,
                value: &T,
            ) -> Result<(), P::Error> {
                let apart = self.apart || self.words.is_apart(self.of, key);
                self.inner.serialize_field(key, &Renamed { value, words: self.words, apart })
            }

            fn skip_field(&mut self, key: &'static str) -> Result<(), P::Error> {
                self.inner.skip_field(key)
            }

            fn end(self) -> Result<P::Ok, P::Error> {
                self.inner.end()
            }
        })*
    };
}

of_fields!(SerializeStruct, SerializeStructVariant);

impl<P: SerializeMap, W: Words> SerializeMap for Parts<'_, P, W> {
    type Ok = P::Ok;
    type Error = P::Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), P::Error> {
        self.inner.serialize_key(&Renamed { value: key, words: self.words, apart: self.apart })
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), P::Error> {
        self.inner.serialize_value(&Renamed { value, words: self.words, apart: self.apart })
    }

    fn end(self) -> Result<P::Ok, P::Error> {
        self.inner.end()
    }
}
