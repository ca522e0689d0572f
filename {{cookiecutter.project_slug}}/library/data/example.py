"""tf.train.Example without TensorFlow: a worker process of a conversion is a tenth as large."""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

# Source: tensorflow/core/example/example.proto and feature.proto.
_EXAMPLE_PROTO = """
name: "example.proto"  package: "tensorflow"  syntax: "proto3"
message_type { name: "BytesList"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES } }
message_type { name: "FloatList"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT } }
message_type { name: "Int64List"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
message_type { name: "Feature" oneof_decl { name: "kind" }
  field { name: "bytes_list" number: 1 type_name: "BytesList" oneof_index: 0 }
  field { name: "float_list" number: 2 type_name: "FloatList" oneof_index: 0 }
  field { name: "int64_list" number: 3 type_name: "Int64List" oneof_index: 0 } }
message_type { name: "Features"
  field { name: "feature" number: 1 label: LABEL_REPEATED type_name: "FeatureEntry" }
  nested_type { name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING }
    field { name: "value" number: 2 type_name: "Feature" } } }
message_type { name: "Example"
  field { name: "features" number: 1 type_name: "Features" } }
"""


def _example_class() -> type[Any]:
    """tf.train.Example, in a pool of our own: TensorFlow has these names in another."""
    file = text_format.Parse(_EXAMPLE_PROTO, descriptor_pb2.FileDescriptorProto())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))


Example = _example_class()
