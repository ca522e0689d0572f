"""tf.train.Example without TensorFlow: the message of its example.proto, by protobuf itself.

A process that only writes examples, as each worker of a conversion, is a tenth as large for it.
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from library.images.files import Jpeg

_Field = descriptor_pb2.FieldDescriptorProto


def _example_class() -> type[Any]:
    """Source: tensorflow/core/example/example.proto and feature.proto."""
    file = descriptor_pb2.FileDescriptorProto(
        name="example.proto", package="tensorflow", syntax="proto3"
    )

    def field(
        message: Any, name: str, number: int, kind: int, *, of: str = "", many: bool = False
    ) -> Any:
        label = _Field.LABEL_REPEATED if many else _Field.LABEL_OPTIONAL
        type_name = {"type_name": f".tensorflow.{of}"} if of else {}
        return message.field.add(name=name, number=number, type=kind, label=label, **type_name)

    for name, kind in (
        ("BytesList", _Field.TYPE_BYTES),
        ("FloatList", _Field.TYPE_FLOAT),
        ("Int64List", _Field.TYPE_INT64),
    ):
        field(file.message_type.add(name=name), "value", 1, kind, many=True)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, name in enumerate(("BytesList", "FloatList", "Int64List"), start=1):
        attribute = name.removesuffix("List").lower() + "_list"
        field(feature, attribute, number, _Field.TYPE_MESSAGE, of=name).oneof_index = 0
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    field(entry, "key", 1, _Field.TYPE_STRING)
    field(entry, "value", 2, _Field.TYPE_MESSAGE, of="Feature")
    field(features, "feature", 1, _Field.TYPE_MESSAGE, of="Features.FeatureEntry", many=True)
    example = file.message_type.add(name="Example")
    field(example, "features", 1, _Field.TYPE_MESSAGE, of="Features")
    pool = descriptor_pool.DescriptorPool()  # of our own: TensorFlow has these names in another
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))


Example = _example_class()


def to_example(jpeg: Jpeg, label: int, class_name: str, filename: str) -> bytes:
    """A serialized Example of a picture, with the keys of TensorFlow's own models.

    Args:
        jpeg: the picture.
        label: the number of its class; below 0: it has none.
        class_name: the name of its class.
        filename: where it came from, which is its key.
    """
    example = Example()
    feature = example.features.feature
    feature["image/encoded"].bytes_list.value.append(jpeg.data)
    feature["image/format"].bytes_list.value.append(b"jpeg")
    feature["image/filename"].bytes_list.value.append(filename.encode(errors="surrogateescape"))
    feature["image/height"].int64_list.value.append(jpeg.height)
    feature["image/width"].int64_list.value.append(jpeg.width)
    if label >= 0:
        feature["image/class/label"].int64_list.value.append(label)
        feature["image/class/text"].bytes_list.value.append(class_name.encode())
    return example.SerializeToString(deterministic=True)
