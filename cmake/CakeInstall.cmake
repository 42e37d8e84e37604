# Install rules. The tree they make can be moved: libraries and the tool find each other relative to themselves, and
# CakeTrainConfig.cmake relative to its own place.
if(NOT CAKE_INSTALL)
  return()
endif()
include(CMakePackageConfigHelpers)

file(RELATIVE_PATH _cake_bin_to_lib "/${CMAKE_INSTALL_BINDIR}" "/${CMAKE_INSTALL_LIBDIR}")
set(_cake_libraries cake_core cake_det cake_nondet)
if(TARGET cake_mpi)
  list(APPEND _cake_libraries cake_mpi)
endif()
set_target_properties(${_cake_libraries} PROPERTIES INSTALL_RPATH "$ORIGIN")
install(TARGETS ${_cake_libraries} EXPORT CakeTrainTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT CakeTrain
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY ${CakeTrain_SOURCE_DIR}/include/cake DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  COMPONENT CakeTrain FILES_MATCHING PATTERN "*.h")
install(FILES ${CakeTrain_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT CakeTrain)
if(TARGET cake)
  set_target_properties(cake PROPERTIES INSTALL_RPATH "$ORIGIN/${_cake_bin_to_lib}")
  install(TARGETS cake RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT CakeTrain)
endif()

set(_cake_config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/CakeTrain)
install(EXPORT CakeTrainTargets NAMESPACE CakeTrain:: DESTINATION ${_cake_config_dir} COMPONENT CakeTrain)
configure_package_config_file(${CakeTrain_SOURCE_DIR}/cmake/CakeTrainConfig.cmake.in
  ${CakeTrain_BINARY_DIR}/CakeTrainConfig.cmake INSTALL_DESTINATION ${_cake_config_dir} NO_SET_AND_CHECK_MACRO)
# Versions below 1.0 promise nothing between minor versions.
write_basic_package_version_file(${CakeTrain_BINARY_DIR}/CakeTrainConfigVersion.cmake
  VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)
install(FILES ${CakeTrain_BINARY_DIR}/CakeTrainConfig.cmake ${CakeTrain_BINARY_DIR}/CakeTrainConfigVersion.cmake
  DESTINATION ${_cake_config_dir} COMPONENT CakeTrain)
