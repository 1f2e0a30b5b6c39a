//! Arguments in the form in which they are sent, for an exchange that outlives its caller.

use std::error::Error;
use std::sync::Arc;

use bytes::BytesMut;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

use super::link::Argument;

type Failure = Box<dyn Error + Sync + Send>;

/// An argument with its type; `None` for a null.
#[derive(Debug)]
pub(super) struct Sealed {
    bytes: Result<Option<BytesMut>, Arc<dyn Error + Sync + Send>>,
    kind: Type,
}

impl Sealed {
    pub(super) fn all(arguments: &[Argument<'_>]) -> Vec<Sealed> {
        arguments.iter().map(Sealed::of).collect()
    }

    fn of((value, kind): &Argument<'_>) -> Sealed {
        let mut bytes = BytesMut::new();
        let bytes = match value.to_sql_checked(kind, &mut bytes) {
            Ok(IsNull::No) => Ok(Some(bytes)),
            Ok(IsNull::Yes) => Ok(None),
            Err(error) => Err(error.into()),
        };
        Sealed { bytes, kind: kind.clone() }
    }
}

impl ToSql for Sealed {
    fn to_sql(&self, _kind: &Type, out: &mut BytesMut) -> Result<IsNull, Failure> {
        match &self.bytes {
            Ok(Some(bytes)) => {
                out.extend_from_slice(bytes);
                Ok(IsNull::No)
            }
            Ok(None) => Ok(IsNull::Yes),
            Err(error) => Err(Box::new(Arc::clone(error))),
        }
    }

    fn accepts(_kind: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// The arguments of a statement again.
pub(super) fn arguments(sealed: &[Sealed]) -> Vec<Argument<'_>> {
    sealed.iter().map(|sealed| (sealed as &(dyn ToSql + Sync), sealed.kind.clone())).collect()
}
